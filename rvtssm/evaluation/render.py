"""Fill the templates of pages and tables, `templates/*`, with jinja2. In HTML all values are escaped."""

import base64
import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from rvtssm.evaluation.result import citation, drop_sentences, markdown_table, percent, shift_sentence

_TEMPLATES = Path(__file__).with_name("templates")
_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\~{}", "^": "\\^{}", "±": "$\\pm$", "–": "--"}
)


def render(template: Path | str, **values: Any) -> str:
    """Return a template filled with values. A missing value is an error.

    Args:
        template: File name of a template in `templates`, or the path of another one.
        values: Values by name.
    """
    template = Path(template)
    return _environment(_TEMPLATES / template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {}  # keys keep their order
    environment.tests["nan"] = math.isnan
    environment.filters |= {
        "citation": citation,
        "data_url": _data_url,
        "drop_sentences": drop_sentences,
        "floored": floored,
        "g": "{:g}".format,
        "latex": lambda text: text.translate(_LATEX),
        "markdown_table": lambda rows, first_column: "\n".join(markdown_table(rows, first_column)),
        "percent": percent,
        "shift_sentence": shift_sentence,
    }
    return environment


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def floored(value: float) -> str:
    """Return a number greater than 0 with two digits that is not above it, such as 0.44, 15 or 230."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{float(f'{math.floor(value / step + 1e-9) * step:.2g}'):g}"
