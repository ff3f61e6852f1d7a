"""The documents list every field and every metric, and nothing that is not there."""

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvasir.server import unsupported
from kvasir.server.protocol import ChatRequest, CompletionRequest
from live_server import LiveServer

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text()
METRICS = (DOCS / "metrics.md").read_text()


def section(text: str, title: str) -> str:
    """From the heading ``title`` to the next heading of any level."""
    (found,) = re.findall(rf"^#+ {re.escape(title)}$(.*?)(?=^#)", text, re.MULTILINE | re.DOTALL)
    return found


def first_cells(text: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_fields() -> None:
    both = first_cells(section(API, "Fields of both generating routes"))
    assert both | first_cells(section(API, "Chat only")) == set(ChatRequest.model_fields)
    assert both | first_cells(section(API, "Completions only")) == set(CompletionRequest.model_fields)


def test_fields_that_are_known_and_not_served() -> None:
    known = {*unsupported.CHAT, *unsupported.COMPLETION, *unsupported.MESSAGE}
    known -= {"messages", *CompletionRequest.model_fields}
    assert set(re.findall(r"`(\w+)`", section(API, "Known and not served"))) == known


def test_metrics(live_server: LiveServer) -> None:
    live_server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
    live_server.post("/v1/completions", {"prompt": []})
    families = text_string_to_metric_families(httpx.get(live_server.url + "/metrics").text)
    served = {family.name: family.type for family in families if family.samples}
    documented = dict(re.findall(r"^\| `((?:vllm|kvasir):\w+)` \| (\w+) \|", METRICS, re.MULTILINE))
    assert served == documented
