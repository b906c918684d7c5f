"""What `python -m sglang.launch_server` starts in these tests: `$FAKE` says what it does, as in `serve` or `die`.

Its first line is the command line that it was given, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

from fake_sglang import Answer, Fake, model, serving


def main() -> None:
    print(json.dumps(sys.argv[1:]), flush=True)
    does = os.environ["FAKE"]
    if does == "die":
        print("loading")
        sys.exit("AttributeError: 'DeepseekV3ForCausalLMNextN' object has no attribute 'fuse_qkv_a_proj'")
    if does == "hang":
        time.sleep(600)
    from tito_core import Codec
    from tito_core.families.registry import default_registry

    usual = model(Codec.of(default_registry.family("deepseekv32"), vocabulary="r1"), spec_accept_length=2.5)
    asked = 0

    def lost(path: str, body: Answer) -> Answer:
        nonlocal asked
        asked += 1
        if asked > 3:
            print("CUDA error: device-side assert triggered", flush=True)
            os._exit(1)
        return usual(path, body)

    with serving(Fake(lost if does == "lose" else usual), int(sys.argv[sys.argv.index("--port") + 1])):
        time.sleep(600)


if __name__ == "__main__":
    main()
