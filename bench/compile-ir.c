/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* compile-ir FILE: reads LLVM's intermediate code from FILE, optimises it as clang -O2 does, and makes machine code of it;
   without FILE it only starts and ends.

   A compiler that can be linked in every way, as Debian's cc1plus and clang cannot: a real program for ways that have to
   relink, or want relocations.  LLVM is linked statically (bench/alternatives.py). */
#include <llvm-c/Core.h>
#include <llvm-c/IRReader.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <stdio.h>

static LLVMTargetMachineRef make_machine(LLVMModuleRef module) {
    LLVMTargetRef target;
    char *message = NULL;
    if (LLVMInitializeNativeTarget() || LLVMInitializeNativeAsmPrinter())
        return NULL;
    if (LLVMGetTargetFromTriple(LLVMGetTarget(module), &target, &message)) {
        fprintf(stderr, "compile-ir: %s\n", message);
        return NULL;
    }
    return LLVMCreateTargetMachine(target, LLVMGetTarget(module), "x86-64", "", LLVMCodeGenLevelDefault,
                                   LLVMRelocPIC, LLVMCodeModelDefault);
}

int main(int argc, char **argv) {
    LLVMMemoryBufferRef file, object;
    LLVMModuleRef module;
    char *message = NULL;
    if (argc != 2)
        return argc > 2;
    if (LLVMCreateMemoryBufferWithContentsOfFile(argv[1], &file, &message) ||
        LLVMParseIRInContext(LLVMGetGlobalContext(), file, &module, &message)) {
        fprintf(stderr, "compile-ir: %s\n", message);
        return 1;
    }
    LLVMTargetMachineRef machine = make_machine(module);
    if (machine == NULL ||
        LLVMRunPasses(module, "default<O2>", machine, LLVMCreatePassBuilderOptions()) != NULL)
        return 1;
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, LLVMObjectFile, &message, &object)) {
        fprintf(stderr, "compile-ir: %s\n", message);
        return 1;
    }
    return LLVMGetBufferSize(object) == 0;
}
