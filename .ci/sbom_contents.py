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
    return {re.split(r"[^\w.-]", each)[0].lower() for each in said}


def faults(text: str, version: str) -> list[str]:
    bom = json.loads(text)
    versions = {each["name"].lower(): each.get("version") for each in bom.get("components", [])}
    ours = bom.get("metadata", {}).get("component", {})
    return [
        *([] if bom.get("bomFormat") == "CycloneDX" else ["it is no SBOM of CycloneDX"]),
        *([] if ours.get("name") == "ssd-llm" else ["its main component is not ssd-llm"]),
        *([] if version in (ours.get("version"), versions.get("ssd-llm")) else [f"{version} is not in it"]),
        *(f"{name} is missing" for name in sorted(needed()) if not versions.get(name)),
    ]


def main() -> None:
    found = faults(Path(sys.argv[1]).read_text(), sys.argv[2])
    if found:
        sys.exit("\n".join(found))
    sys.stdout.write(f"{sys.argv[1]} names every dependency with its version\n")


if __name__ == "__main__":
    main()
