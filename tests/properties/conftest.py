"""Makes the modelled executor importable from the property tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
