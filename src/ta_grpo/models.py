"""From what a user names as a model to a directory or id that transformers loads."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .errors import UserError

TINY = "tiny"
# A model below this many parameters is bound by overhead, and threads only wait for each other.
_ONE_THREAD_BELOW = 20_000_000


def resolve_model(name: str) -> str:
    """What to pass to ``from_pretrained``: the embedded policy for ``tiny``, a converted copy for a GGUF file, or a
    checked directory; anything else is taken for a Hub id.

    Raises:
        UserError: a path that holds no model.
    """
    if name == TINY:
        from .tiny import POLICY_DIR

        return str(POLICY_DIR)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return str(_converted_gguf(path))
    if path.is_dir():
        if not ((path / "config.json").exists() or (path / "adapter_config.json").exists()):
            raise UserError(f"model {name}: this directory has no config.json; name a Hugging Face model directory")
        return str(path)
    if path.exists():
        raise UserError(f"model {name} is a file; name a model directory, a .gguf file or a Hub id")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UserError(f"model {name}: there is no such directory")
    return name


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that ``resolve_model`` has named.

    Raises:
        UserError: it cannot be loaded, with what the loader said.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # a damaged tokenizer.json raises just that
        raise cannot_load(name, error) from error


def load_model(name: str, dtype: Any = "auto") -> tuple[Any, Any]:
    """Model and tokenizer, on the GPU if there is one; full precision on the CPU, where bf16 is slow.

    A directory with only LoRA adapters is loaded together with its base model.

    Raises:
        UserError: it cannot be loaded, with what the loader said.
    """
    import torch
    from transformers import AutoModelForCausalLM

    name = resolve_model(name)
    tokenizer = load_tokenizer(name)
    dtype = dtype if torch.cuda.is_available() else torch.float32
    try:
        # With peft installed, transformers follows adapter_config.json to the base model.
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except Exception as error:  # damaged files raise errors of many kinds
        raise cannot_load(name, error) from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def choose_threads(model: Any) -> None:
    """One thread for a small model on a CPU, unless OMP_NUM_THREADS says otherwise."""
    import torch

    if torch.cuda.is_available() or "OMP_NUM_THREADS" in os.environ:
        return
    if sum(parameter.numel() for parameter in model.parameters()) < _ONE_THREAD_BELOW:
        torch.set_num_threads(1)


def cannot_load(name: str, error: Exception) -> UserError:
    """What to say of a model that its loader refuses."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"model {name} cannot be loaded: {reason.rstrip('.')}; check the name, or restore the file: without network, "
        "only local directories, GGUF files and cached models load"
    )


def _converted_gguf(path: Path) -> Path:
    """A Hugging Face copy of a GGUF model, made once and kept in the user's cache directory.

    transformers reads GGUF weights, but refuses to save the model it made of them; the copy is a fresh full-precision
    model with the same weights.

    Raises:
        UserError: there is no such file; it cannot be read, with what the reader said; gguf is not installed.
    """
    if not path.is_file():
        raise UserError(f"model {path}: there is no such file")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ta-grpo" / "gguf"
    converted = cache / f"{path.stem}-{digest[:16]}"
    if (converted / "config.json").exists():
        return converted
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        import gguf  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"model {path}: GGUF files need the package gguf; run: pip install 'ta-grpo[gguf]'") from None
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        read: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # damaged files raise errors of many kinds
        raise cannot_load(str(path), error) from error
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    fresh: Any = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config = read.generation_config
    cache.mkdir(parents=True, exist_ok=True)
    half_made = Path(tempfile.mkdtemp(prefix=f".{converted.name}.", dir=cache))
    try:
        fresh.save_pretrained(half_made)
        tokenizer.save_pretrained(half_made)
        os.replace(half_made, converted)
    except OSError:
        if not (converted / "config.json").exists():  # else another process has made it meanwhile
            raise
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return converted
