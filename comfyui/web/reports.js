// The text that a node of this pack reports, in a field under it: ComfyUI's page shows the picture
// of a node's result, and of its text nothing.
import { app } from "/scripts/app.js";
import { ComfyWidgets } from "/scripts/widgets.js";

const FIELD = "pestle_report";
const NODES = ["PestleCompileReport", "PestleModelReport", "PestleQuantiseModel"];
const WIDTH = 460;
const LINE = 12;
const MOST_LINES = 24;

function field(node) {
  const there = node.widgets?.find((widget) => widget.name === FIELD);
  if (there) return there;
  const { widget } = ComfyWidgets.STRING(node, FIELD, ["STRING", { multiline: true }], app);
  widget.inputEl.readOnly = true;
  Object.assign(widget.inputEl.style, { opacity: 0.8, whiteSpace: "pre", overflowX: "auto" });
  // Neither saved with the workflow nor sent with the prompt.
  widget.serialize = false;
  widget.options.serialize = false;
  widget.serializeValue = () => undefined;
  return widget;
}

function show(node, text) {
  const widget = field(node);
  widget.value = text;
  const height = LINE * Math.min(MOST_LINES, text.split("\n").length + 1) + 8;
  widget.options.getMinHeight = () => height;
  const [width, least] = node.computeSize();
  node.setSize([Math.max(WIDTH, width, node.size[0]), Math.max(least, node.size[1])]);
  app.canvas.setDirty(true, true);
}

app.registerExtension({
  name: "pestle.reports",
  async beforeRegisterNodeDef(type, definition) {
    if (!NODES.includes(definition.name)) return;
    const before = type.prototype.onExecuted;
    type.prototype.onExecuted = function (message) {
      before?.apply(this, arguments);
      if (message?.text) show(this, message.text.join(""));
    };
  },
});
