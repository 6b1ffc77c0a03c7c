"""launch() with the options that the first argument gives as JSON, of the command that follows. See test_launch.py."""

import json
import sys

from jaxtern.hosts.processes import launch

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.exit(launch(sys.argv[2:], options.pop("num_processes"), **options))
