"""Whether an SBOM describes our package and what it needs: `sbom_contents.py SBOM VERSION`.

The form is CycloneDX's JSON. Every dependency of pyproject.toml, and of its extra `server`, is a component
with a version.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def needed() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    return {normal(re.split(r"[^\w.-]", each)[0]) for each in said}


def normal(name: str) -> str:
    """As package indexes compare names: prompt_toolkit is prompt-toolkit."""
    return re.sub(r"[-_.]+", "-", name).lower()


def faults(text: str, version: str) -> list[str]:
    bom = json.loads(text)
    versions = {normal(each["name"]): each.get("version") for each in bom.get("components", [])}
    ours = bom.get("metadata", {}).get("component", {})
    return [
        *([] if bom.get("bomFormat") == "CycloneDX" else ["it is no SBOM of CycloneDX"]),
        *([] if ours.get("name") == "ssd-llm" else ["its main component is not ssd-llm"]),
        *([] if ours.get("version") == version else [f"its main component is not {version}"]),
        *(f"{name} is missing" for name in sorted(needed()) if not versions.get(name)),
    ]


def main() -> None:
    found = faults(Path(sys.argv[1]).read_text(), sys.argv[2])
    if found:
        sys.exit("\n".join(found))
    sys.stdout.write(f"{sys.argv[1]} names every dependency with its version\n")


if __name__ == "__main__":
    main()
