"""What a checkpoint says beside its weights."""

import json
from pathlib import Path

from ssd.models.checkpoint import open_checkpoint
from tests.models.test_refusals import edit_config
from tests.tiny import write_checkpoint


def test_every_end_token_that_is_declared_ends_a_text(tmp_path: Path) -> None:
    """Chat models have several, and end their turns with another than the first."""
    write_checkpoint("qwen2", tmp_path)
    edit_config(tmp_path, eos_token_id=[1, 7])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 8]}))
    checkpoint = open_checkpoint(str(tmp_path))
    assert sorted(checkpoint.end_ids(checkpoint.tokenizer())) == [1, 7, 8, 9]
