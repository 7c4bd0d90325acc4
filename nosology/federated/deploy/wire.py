"""Messages as they go through a SuperLink: one parcel each.

A SuperLink keeps, sends and books every array and every record of a message as an object of its own, each with several
requests and a dozen database transactions. A head of 20 arrays is more than 40 objects, a parcel is four.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

PARCEL = "parcel"


def packed(content: RecordDict) -> RecordDict:
    """The content as a parcel; a parcel is left as it is."""
    if PARCEL in content:
        return content
    whole = recorddict_to_proto(content).SerializeToString(deterministic=True)
    return RecordDict({PARCEL: ArrayRecord({PARCEL: Array(np.frombuffer(whole, dtype=np.uint8))})})


def unpacked(content: RecordDict) -> RecordDict:
    """What was packed; what was not is left as it is."""
    if PARCEL not in content:
        return content
    return recorddict_from_proto(ProtoRecordDict.FromString(content[PARCEL][PARCEL].numpy().tobytes()))
