"""A page that is read: its tables, what it loads, and its script."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tables by id, attributes that load something, the script, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.script = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert values.get("id") not in self.ids, f"two elements have the id {values['id']}"
        self.ids |= {values["id"]} if "id" in values else set()
        self.loaded += [values[name] for name in ("src", "href", "action", "data", "srcset") if name in values]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = self.tables[values["id"]] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self._rows[-1][-1] += data
        elif self.open and self.open[-1] == "script":
            self.script += data
