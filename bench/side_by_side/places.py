"""Where peers, their models and the records of their runs lie: everything under ``.peers/``, out of version control."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
MODELS = PEERS / "models"
LOGS = PEERS / "logs"
RECORDS = PEERS / "records.jsonl"


def environment_python(peer: str) -> Path:
    return PEERS / peer / "bin" / "python"


def llama_server() -> Path:
    return PEERS / "llama-cpp-python" / "build" / "bin" / "llama-server"


def model_file(name: str) -> Path:
    return MODELS / name
