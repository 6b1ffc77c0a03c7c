"""One of N hosts that read a prepared dataset; prints the digest of its part of every batch. See test_feed.py."""

import itertools
import json
import sys

from jaxtern.data.feed import StreamingFeed
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.data.records import open_folder
from jaxtern.data.rendering import Share
from jaxtern.training.saved.trees import digest

SEED, BATCH, STEPS, SIDE = 11, 8, 7, 16  # those of the test

if __name__ == "__main__":
    folder, host, num_hosts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    split, share = open_folder(folder).train, Share(host, num_hosts)
    batches = StreamingFeed(split, BATCH, SEED, share, get_preprocessing("inception"), SIDE).batches(0)
    print(json.dumps([digest(batch) for batch in itertools.islice(batches, STEPS)]))
    batches.close()
