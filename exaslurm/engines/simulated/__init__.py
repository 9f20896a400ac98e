"""An engine without a model: vLLM's HTTP surface and metrics, with a stated timing model.

For planning, scale and fault tests. It says that it is simulated in every answer (header
``x-exaslurm-simulated``, ``system_fingerprint``), in the text itself and in its metrics.
"""

MARK = "exaslurm-simulated"
