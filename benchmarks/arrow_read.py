"""One Python process that reads a topic into Arrow columns several times, and prints the seconds of each read.

python arrow_read.py NAMESRV TOPIC TIMES [COLUMN ...]

<- {"messages": 2000000, "seconds": [1.41, 1.38, 1.40]}
"""

from __future__ import annotations

import json
import sys
import time

from holdfast import arrow


def main() -> None:
    """Read the whole topic afresh each time. The first read is not counted: it loads the modules that pyarrow needs."""
    namesrv, topic, times, *columns = sys.argv[1:]
    messages, seconds = 0, []
    for number in range(1 + int(times)):
        begun_s = time.perf_counter()
        messages = sum(batch.num_rows for batch in arrow.read(namesrv, topic, columns=columns or arrow.COLUMNS))
        if number:
            seconds.append(time.perf_counter() - begun_s)
    print(json.dumps({"messages": messages, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
