# Copies and compares bytes with what every x86-64 CPU has (SSE2). parshall_memmove(rdi: to, rsi: from, rdx: bytes) returns rdi in rax;
# parshall_memcmp(rdi, rsi, rdx: bytes) returns in eax less than, equal to or greater than 0. Both keep to the registers that a callee
# may change, and use no stack.
#
# Up to 128 bytes are all read before any is written, from both ends towards the middle, so that neither the exact length nor an overlap
# matters.

    .pushsection .text.parshall_memory, "ax", @progbits
    .globl parshall_memmove
    .hidden parshall_memmove
    .type parshall_memmove, @function
    .p2align 5
parshall_memmove:
    mov rax, rdi
    cmp rdx, 16
    jae 20f
    cmp edx, 8
    jae 12f
    cmp edx, 4
    jae 11f
    test edx, edx
    je 10f
    mov r8d, edx
    shr r8d
    movzx ecx, byte ptr [rsi]
    movzx r9d, byte ptr [rsi + r8]
    movzx r10d, byte ptr [rsi + rdx - 1]
    mov byte ptr [rdi], cl
    mov byte ptr [rdi + r8], r9b
    mov byte ptr [rdi + rdx - 1], r10b
10: ret
11: mov ecx, dword ptr [rsi]
    mov r8d, dword ptr [rsi + rdx - 4]
    mov dword ptr [rdi], ecx
    mov dword ptr [rdi + rdx - 4], r8d
    ret
12: mov rcx, qword ptr [rsi]
    mov r8, qword ptr [rsi + rdx - 8]
    mov qword ptr [rdi], rcx
    mov qword ptr [rdi + rdx - 8], r8
    ret
20: movups xmm0, [rsi]
    movups xmm7, [rsi + rdx - 16]
    cmp rdx, 32
    ja 21f
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm7
    ret
21: movups xmm1, [rsi + 16]
    movups xmm6, [rsi + rdx - 32]
    cmp rdx, 64
    ja 22f
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    ret
22: movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    cmp rdx, 128
    ja 30f
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
23: movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    ret
    # More than 128 bytes. Backwards where the target begins within the source; xmm0 to xmm3 hold its first 64 bytes.
30: mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jb 40f
    cmp rdx, 4096
    jae 50f
    # Forwards, 64 bytes a time; xmm4 to xmm7 hold the last 64 bytes.
31: lea r8, [rdx - 64]
    xor ecx, ecx
32: movups xmm0, [rsi + rcx]
    movups xmm1, [rsi + rcx + 16]
    movups xmm2, [rsi + rcx + 32]
    movups xmm3, [rsi + rcx + 48]
    movups [rdi + rcx], xmm0
    movups [rdi + rcx + 16], xmm1
    movups [rdi + rcx + 32], xmm2
    movups [rdi + rcx + 48], xmm3
    add rcx, 64
    cmp rcx, r8
    jb 32b
    jmp 23b
40: mov rcx, rdx
41: movups xmm4, [rsi + rcx - 64]
    movups xmm5, [rsi + rcx - 48]
    movups xmm6, [rsi + rcx - 32]
    movups xmm7, [rsi + rcx - 16]
    movups [rdi + rcx - 64], xmm4
    movups [rdi + rcx - 48], xmm5
    movups [rdi + rcx - 32], xmm6
    movups [rdi + rcx - 16], xmm7
    sub rcx, 64
    cmp rcx, 64
    ja 41b
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    ret
    # CPUs copy much at once faster by themselves, unless source and target overlap.
50: mov rcx, rsi
    sub rcx, rdi
    cmp rcx, rdx
    jb 31b
    lea r8, [rdi + rdx]
    mov rcx, rdx
    shr rcx, 3
    rep movsq
    movups [r8 - 16], xmm7
    ret
    .size parshall_memmove, . - parshall_memmove

    .globl parshall_memcmp
    .hidden parshall_memcmp
    .type parshall_memcmp, @function
    .p2align 5
parshall_memcmp:
    cmp rdx, 16
    jae 5f
    cmp edx, 8
    jae 2f
    cmp edx, 4
    jae 1f
    xor eax, eax
    test edx, edx
    je 9f
    movzx eax, byte ptr [rdi]
    movzx ecx, byte ptr [rsi]
    sub eax, ecx
    jne 9f
    dec edx
    je 9f
    movzx eax, byte ptr [rdi + 1]
    movzx ecx, byte ptr [rsi + 1]
    sub eax, ecx
    jne 9f
    movzx eax, byte ptr [rdi + rdx]
    movzx ecx, byte ptr [rsi + rdx]
    sub eax, ecx
    ret
1:  mov eax, dword ptr [rdi]
    mov ecx, dword ptr [rsi]
    cmp rax, rcx
    jne 3f
    mov eax, dword ptr [rdi + rdx - 4]
    mov ecx, dword ptr [rsi + rdx - 4]
    cmp rax, rcx
    jne 3f
    xor eax, eax
    ret
2:  mov rax, qword ptr [rdi]
    mov rcx, qword ptr [rsi]
    cmp rax, rcx
    jne 3f
    mov rax, qword ptr [rdi + rdx - 8]
    mov rcx, qword ptr [rsi + rdx - 8]
    cmp rax, rcx
    jne 3f
    xor eax, eax
    ret
    # The first byte that differs decides: as the highest byte of a number.
3:  bswap rax
    bswap rcx
    cmp rax, rcx
    sbb eax, eax
    or eax, 1
    ret
5:  lea r8, [rdx - 16]
    xor ecx, ecx
    jmp 7f
6:  movdqu xmm0, [rdi + rcx]
    movdqu xmm1, [rsi + rcx]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    sub eax, 0xffff
    jne 8f
    add rcx, 16
7:  cmp rcx, r8
    jb 6b
    mov rcx, r8
    movdqu xmm0, [rdi + rcx]
    movdqu xmm1, [rsi + rcx]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    sub eax, 0xffff
    jne 8f
9:  ret
    # eax is less than 0 by the bits of the bytes that differ, and has the same lowest bit as these.
8:  bsf eax, eax
    add rcx, rax
    movzx eax, byte ptr [rdi + rcx]
    movzx ecx, byte ptr [rsi + rcx]
    sub eax, ecx
    ret
    .size parshall_memcmp, . - parshall_memcmp
    .popsection
