/* follow: see order.py. */
#include "native.h"

/* Operands: an array, and what was to be computed before. Result: the array, where it lies. */
HANDLER jaxtern_follow(XLA_FFI_CallFrame* frame) {
  (void)is_metadata_query(frame);
  return NULL;
}
