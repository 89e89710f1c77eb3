"""ComfyUI's page in a browser: nodes found by search, wired with the mouse, run by its button."""

import time
from pathlib import Path

# Where the mouse asks for the palette: empty canvas, below every node.
EMPTY = (660, 715)
SCALE, OFFSET = 0.7, (100, 230)  # below the bars at the top
ELEMENTS = "Comfy.VueNodes.Enabled"
SETTINGS = {
    "Comfy.TutorialCompleted": True,  # else the templates' dialog lies above the graph
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.RightSidePanel.IsOpen": False,
    ELEMENTS: False,  # nodes are drawn on the canvas
}
ENDS = ("execution_success", "execution_error", "execution_interrupted")
READY = """([scale, offset, ends]) => {
  app.graph.clear();
  // The page keeps values and pictures by a node's number: none has that of an earlier one.
  window.last = (window.last ?? 0) + 100;
  app.graph.state.lastNodeId = window.last;
  app.canvas.ds.scale = scale;
  app.canvas.ds.offset = offset;
  app.canvas.setDirty(true, true);
  if (!window.ended) {
    window.ended = [];
    for (const kind of ends) app.api.addEventListener(kind, e => ended.push([kind, e.detail]));
  }
}"""
CREATE = """([kind, at, widgets]) => {
  const node = LiteGraph.createNode(kind);
  node.pos = at;
  app.graph.add(node);
  for (const [name, value] of Object.entries(widgets))
    node.widgets.find(w => w.name === name).value = value;
  return node.id;
}"""
PLACED = """at => {
  const node = app.graph.nodes.at(-1);
  node.pos = at;
  app.canvas.deselectAll();
  app.canvas.setDirty(true, true);
  return [node.id, node.type];
}"""
SLOTS = """([from, output, to, input]) => {
  const a = app.graph.getNodeById(from), b = app.graph.getNodeById(to);
  const slot = b.inputs.findIndex(one => one.name === input);
  const {scale, offset} = app.canvas.ds, box = app.canvas.canvas.getBoundingClientRect();
  const place = p => [(p[0] + offset[0]) * scale + box.left, (p[1] + offset[1]) * scale + box.top];
  return [place(a.getOutputPos(output)), place(b.getInputPos(slot))];
}"""
LINKED = """([from, output, to, input]) => {
  const node = app.graph.getNodeById(to);
  const link = app.graph.links.get(node.inputs.find(one => one.name === input).link);
  return !!link && link.origin_id == from && link.origin_slot == output;
}"""
# The text of a node's widgets that can be seen in a field of the page.
TOLD = """id => {
  const seen = [...document.querySelectorAll('textarea')].filter(e => e.checkVisibility());
  const texts = (app.graph.getNodeById(id).widgets ?? []).map(w => String(w.value));
  return texts.filter(text => seen.some(e => text && e.value === text)).join('\\n');
}"""
PICTURES = "id => app.graph.getNodeById(id).imgs?.filter(i => i.naturalWidth > 0).length ?? 0"


# Widgets of a kind's node by name, those of the page's own aside.
VALUES = """kind => {
  const node = app.graph.nodes.find(one => one.type === kind);
  return Object.fromEntries(node.widgets.map(w => [w.name, w.value]));
}"""
UNKNOWN = "app.graph.nodes.map(n => n.type).filter(t => !LiteGraph.registered_node_types[t])"


class GraphPage:
    def __init__(self, seen, port: int):
        self.seen, self.page = seen, seen.page
        self.page.goto(f"http://127.0.0.1:{port}/")
        self.page.get_by_test_id("queue-button").wait_for()
        self.page.wait_for_function("app.graph.nodes.length > 0")  # its own first workflow

    def clear(self) -> None:
        self.page.evaluate(READY, [SCALE, OFFSET, ENDS])

    def open_template(self, name: str) -> None:
        """As a user does: the browser of templates, a click on one."""
        self.page.evaluate("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        self.page.get_by_test_id(f"template-workflow-{name}").click()
        self.page.get_by_test_id(f"template-workflow-{name}").wait_for(state="hidden")
        self.page.wait_for_function("app.graph.nodes.length > 0")

    def load(self, workflow: dict) -> None:
        """A file that is dropped on the page."""
        self.page.evaluate("workflow => app.loadGraphData(workflow)", workflow)

    def kinds(self) -> tuple[list[str], list[str]]:
        """Of the graph's nodes, and of those that the page does not know."""
        return self.page.evaluate("app.graph.nodes.map(n => n.type)"), self.page.evaluate(UNKNOWN)

    def links(self) -> int:
        return self.page.evaluate("app.graph.links.size")

    def values(self, kind: str) -> dict:
        return self.page.evaluate(VALUES, kind)

    def search(self, words: str):
        """The palette with what it found, the best first."""
        field = self.page.get_by_placeholder("Add a node...")
        while not field.is_visible():
            self.page.mouse.dblclick(*EMPTY)  # two slow clicks are none
            self.page.wait_for_timeout(700)
        field.fill(words)
        found = self.page.locator("#results-list [role=option]").filter(has_text=words)
        found.first.wait_for()
        return found

    def close_search(self) -> None:
        self.page.keyboard.press("Escape")
        self.page.get_by_placeholder("Add a node...").wait_for(state="hidden")

    def add(self, words: str, at: tuple) -> tuple[str, str]:
        """Finds a node by its name, puts it down with a click: its id and type."""
        before = self.page.evaluate("app.graph.nodes.length")
        self.search(words).first.click()
        self.page.get_by_placeholder("Add a node...").wait_for(state="hidden")
        self.page.mouse.move(EMPTY[0], EMPTY[1] - 60)
        self.page.mouse.click(EMPTY[0], EMPTY[1] - 60)
        self.page.wait_for_function(f"app.graph.nodes.length === {before + 1}")
        return self.page.evaluate(PLACED, list(at))

    def put(self, kind: str, at: tuple, **widgets) -> str:
        """One of ComfyUI's own nodes, without the palette."""
        return self.page.evaluate(CREATE, [kind, list(at), widgets])

    def set(self, node: str, widget: str, value) -> None:
        find = "([id, name, value]) => {app.graph.getNodeById(id).widgets.find(w => w.name === name).value = value}"  # noqa: E501
        self.page.evaluate(find, [node, widget, value])

    def wire(self, from_node: str, output: int, to_node: str, name: str) -> None:
        """Drags a link; again where the page was too slow to see the mouse."""
        link = [from_node, output, to_node, name]
        mouse, end = self.page.mouse, time.monotonic() + 120
        while not self.page.evaluate(LINKED, link):
            assert time.monotonic() < end, f"no link {link}"
            self.page.wait_for_timeout(350)  # else it would be a double click
            (x, y), (x_end, y_end) = self.page.evaluate(SLOTS, link)
            mouse.move(x, y)
            mouse.down()
            mouse.move((x + x_end) / 2, (y + y_end) / 2)
            mouse.move(x_end, y_end)
            mouse.up()

    def run(self) -> tuple[str, dict]:
        """Presses the button and waits: how it ended, and what was said of it."""
        self.page.evaluate("ended.length = 0")
        self.page.get_by_test_id("queue-button").click()
        self.page.wait_for_function("ended.length > 0")
        self.page.get_by_text("0 active").wait_for()
        return tuple(self.page.evaluate("ended[0]"))

    def open_error(self) -> None:
        """What the page says of a run that failed."""
        self.page.get_by_role("button", name="View details").click()

    def told(self, node: str, word: str) -> str:
        """The text under a node, as soon as it holds the word."""
        arguments = [node, word]
        told = f"([id, word]) => ({TOLD})(id).includes(word)"
        self.page.wait_for_function(told, arg=arguments)
        return self.page.evaluate(TOLD, node)

    def nodes_as_elements(self, wanted: bool) -> None:
        """Of the page, or drawn on the canvas: a user's choice."""
        change = f"value => app.ui.settings.setSettingValue('{ELEMENTS}', value)"
        self.page.evaluate(change, wanted)
        self.page.wait_for_function(
            "wanted => (document.querySelectorAll('[data-node-id]').length > 0) === wanted",
            arg=wanted,
        )

    def has_picture(self, node: str) -> None:
        self.page.wait_for_function(f"id => ({PICTURES})(id) === 1", arg=node)

    def photograph(self, path: Path) -> None:
        """The page in 64 colours, so that the documentation stays small."""
        from PIL import Image

        self.page.mouse.move(*EMPTY)
        self.page.wait_for_timeout(1000)  # the next frames
        self.page.screenshot(path=path)
        colours = Image.Quantize.MEDIANCUT
        Image.open(path).convert("RGB").quantize(64, colours, dither=0).save(path, optimize=True)
