# The names by which compiled code calls them. All that musl's own file of memmove defines is here too, or it would be linked beside this.
    .globl memcpy
    .globl memmove
    .globl memcmp
    .globl bcmp
    .set memcpy, parshall_memmove
    .set memmove, parshall_memmove
    .set memcmp, parshall_memcmp
    .set bcmp, parshall_memcmp
