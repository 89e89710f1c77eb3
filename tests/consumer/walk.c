/* The installed header, as C: every op is found again by its name. */
#include <pestle/pestle.h>

size_t walk_ops(void) {
  size_t found = 0;
  for (size_t i = 0; i < pestle_op_count(); ++i) {
    const pestle_op* op = pestle_op_at(i);
    found += pestle_find_op(pestle_op_name(op)) == op;
  }
  return found;
}
