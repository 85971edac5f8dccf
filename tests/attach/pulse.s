# SPDX-License-Identifier: LGPL-2.1-or-later
# The same as pulse.go, for QEMU: a boot sector that computes until a byte comes in by the serial line.
        .code16
        .globl _start
_start: ljmp $0, $begin
begin:  xor %ax, %ax
        mov %ax, %ds
        mov %ax, %ss
        mov $0x7c00, %sp
        cld
        mov $ready, %si
        call print
again:  xor %eax, %eax
        mov $999, %ecx
square: mov %ecx, %edx
        imul %edx, %edx
        add %edx, %eax
        dec %ecx
        jnz square
        cmp $332833500, %eax
        je right
        movb $'1', digit
right:  mov $0x3fd, %dx
        in %dx, %al
        test $1, %al
        jz again
        mov $result, %si
        call print
        mov $3, %al
        out %al, $0xf4          # isa-debug-exit makes 2 * 3 + 1 of it
stop:   hlt
        jmp stop
print:  lodsb
        test %al, %al
        jz done
        mov %al, %ah
        mov $0x3fd, %dx
full:   in %dx, %al
        test $0x20, %al
        jz full
        mov %ah, %al
        mov $0x3f8, %dx
        out %al, %dx
        jmp print
done:   ret
ready:  .asciz "ready\n"
result: .ascii "rounds, wrong "
digit:  .asciz "0\n"
        .org 510
        .word 0xaa55
