"""Reading a spec file."""

from __future__ import annotations

from pathlib import Path

from exaslurm.errors import SpecError
from exaslurm.spec.model import Spec
from exaslurm.util.checked import check, report
from exaslurm.util.yaml_lines import nearest, read_document, read_yaml_file


def load_spec(path: Path, text: str | None = None) -> Spec:
    """The spec in ``path``, or in ``text`` if that is given (``path`` then only names it).

    Raises SpecError with every problem of the file, one a line:
    ``file:line: key: message (got VALUE); did you mean X?``.
    """
    if text is None:
        text = read_spec(path)
    document = read_document(text, str(path))
    spec, problems = check(Spec, document)
    if spec is None:
        raise SpecError(report(problems))
    return spec.in_directory(str(path.absolute().parent))


def read_spec(path: Path) -> str:
    """The text of a spec file; SpecError if it cannot be read, or is no text."""
    return read_yaml_file(path, SpecError, remedy="exaslurm init > spec.yaml writes an example")


def require_shard(spec: Spec, name: str) -> tuple[str, str]:
    """Model and shard of ``model:shard`` or ``model`` (its first shard); SpecError if unknown."""
    valid = spec.shard_names()
    firsts = {model.name: f"{model.name}:{model.shards[0].name}" for model in spec.models}
    full = firsts.get(name, name)
    if full not in valid:
        raise SpecError(
            f"{spec.where('models')}: no shard {name!r}{nearest(name, [*valid, *firsts])}"
        )
    model, _, shard = full.partition(":")
    return model, shard
