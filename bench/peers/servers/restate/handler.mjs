// The service of the comparison: a virtual object with one handler, which sets the object's state. Argument: its port.
import * as restate from "@restatedev/restate-sdk";

const put = async (context, value) => {
  context.set("value", value);
  return "set";
};
restate.endpoint().bind(restate.object({ name: "kv", handlers: { put } })).listen(Number(process.argv[2]));
