"""The router alone: lists of engines, no Slurm."""

from __future__ import annotations

import sys

from acceptance.lab import ROOT

if str(ROOT) not in sys.path:  # the engines and clients are those of the tests
    sys.path.insert(0, str(ROOT))
