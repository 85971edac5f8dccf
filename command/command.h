/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The sub-commands. */
#ifndef HL_COMMAND_H
#define HL_COMMAND_H

/* The commands.  argv[0] is "hugeld", and the rest are the arguments behind the command's name; the result is the exit code
   (basics.h). */
int hl_run_program(int argc, char **argv);
int hl_inspect_files(int argc, char **argv);
int hl_show_status(int argc, char **argv);
int hl_examine_machine(int argc, char **argv);
int hl_map_functions(int argc, char **argv);
int hl_measure_program(int argc, char **argv);
int hl_survey_programs(int argc, char **argv);
int hl_make_image(int argc, char **argv);
int hl_attach_processes(int argc, char **argv);
int hl_detach_processes(int argc, char **argv);
int hl_enable_programs(int argc, char **argv);
int hl_disable_programs(int argc, char **argv);
int hl_reset_machine(int argc, char **argv);
int hl_apply(int argc, char **argv);
int hl_list_enabled(int argc, char **argv);
/* What systemd calls by the drop-ins of units and as its generator: VERB is unit-begin, unit-end or unit-generate. */
int hl_serve_unit(const char *verb, int argc, char **argv);

#endif
