"""Constants from several texts: means count tokens, sinks count texts, scales hold the largest of all."""

import torch

from kvasir.cli.calibrate_model import shorter_lengths
from kvasir.compression.constants import ConstantsCollector
from kvasir.compression.observer import LayerView
from kvasir.formats.feedback import key_feedback

HEADS, DIM = 2, 32


def view(num_tokens: int, seed: int) -> LayerView:
    made = torch.Generator().manual_seed(seed)
    q = torch.randn(num_tokens, 2 * HEADS, DIM, generator=made)
    k, v = (torch.randn(num_tokens, HEADS, DIM, generator=made) * seed for _ in range(2))
    return LayerView(layer=0, q=q, k=k, v=v, energy=torch.ones(num_tokens))


def test_several_texts_count_by_their_tokens():
    views = [view(50, 1), view(7, 3)]
    collector = ConstantsCollector(1, HEADS, DIM, has_feedback=True)
    for seen in views:
        collector.see(seen)
    found = collector.constants
    assert found.k_center is not None and found.k_sink is not None and found.v_sink is not None
    assert found.k_scale is not None and found.k_feedback is not None
    k = torch.cat([seen.k for seen in views])
    torch.testing.assert_close(found.k_center[0], k.mean(dim=0))
    torch.testing.assert_close(found.k_sink[0], (views[0].k[0] + views[1].k[0]) / 2)
    torch.testing.assert_close(found.v_sink[0], (views[0].v[0] + views[1].v[0]) / 2)
    assert (found.k_scale[0] * 448 >= k.abs().amax(dim=(0, 2))).all()
    queries = torch.cat([seen.q for seen in views]).double().unflatten(1, (HEADS, -1)).transpose(0, 1).flatten(1, 2)
    torch.testing.assert_close(found.k_feedback[0], key_feedback(queries.mT @ queries))


def test_shorter_texts_together_are_three_times_the_long_one():
    assert shorter_lengths(4096) == [2048] * 2 + [1024] * 4 + [512] * 8
    assert shorter_lengths(3) == [1, 1]
