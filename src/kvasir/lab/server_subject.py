"""One setting, running somewhere else: any server that speaks the OpenAI API, asked through the official client."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import KvasirError
from kvasir.core.progress import Progress, no_progress
from kvasir.lab.chat import Chat, Reply

if TYPE_CHECKING:
    import openai

_NUM_AT_ONCE = 8
_TIMEOUT_S = 600.0


class ServerSubjectError(KvasirError):
    """A server under test that cannot be asked."""

    code = "server_under_test"


class ServerSubject:
    """``is_other_batch``: questions are asked one after the other and in another order, for the floor.

    The model is the first that the server lists.  Raises ``ServerSubjectError`` when the server cannot be reached or
    refuses.  The key, where one is needed, comes from the environment variable OPENAI_API_KEY.
    """

    def __init__(self, name: str, base_url: str, *, is_other_batch: bool = False) -> None:
        try:
            import openai
        except ImportError as error:
            raise ServerSubjectError(
                "Asking a server needs the openai package; install kvasir with the extra 'lab'."
            ) from error
        import os

        self.name = name
        self.base_url = base_url
        self._is_other_batch = is_other_batch
        self._client = openai.OpenAI(
            base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY") or "none", timeout=_TIMEOUT_S
        )
        self._errors: type[Exception] = openai.OpenAIError
        self.model = self._first_model(self._client)

    def ask(self, chats: Sequence[Chat], progress: Progress = no_progress) -> list[Reply]:
        order = list(range(len(chats)))
        if self._is_other_batch:
            order.reverse()
        replies: dict[int, Reply] = {}
        progress("answer", 0.0)
        with ThreadPoolExecutor(max_workers=1 if self._is_other_batch else _NUM_AT_ONCE) as pool:
            for i, reply in zip(order, pool.map(lambda i: self._ask_one(chats[i]), order), strict=True):
                replies[i] = reply
                progress("answer", len(replies) / len(chats))
        return [replies[i] for i in range(len(chats))]

    def close(self) -> None:
        self._client.close()

    def _ask_one(self, chat: Chat) -> Reply:
        messages: Any = chat.messages
        try:
            answer = self._client.chat.completions.create(
                model=self.model,
                messages=messages,
                max_tokens=chat.max_tokens,
                temperature=chat.temperature,
                seed=chat.seed,
            )
        except self._errors as error:
            raise ServerSubjectError(f"{self.base_url} did not answer: {error}") from error
        choice = answer.choices[0]
        return Reply(text=choice.message.content or "", token_ids=None, has_ended=choice.finish_reason == "stop")

    def _first_model(self, client: "openai.OpenAI") -> str:
        try:
            models = client.models.list().data
        except self._errors as error:
            raise ServerSubjectError(f"{self.base_url} cannot be asked for its models: {error}") from error
        if not models:
            raise ServerSubjectError(f"{self.base_url} lists no model.")
        return models[0].id
