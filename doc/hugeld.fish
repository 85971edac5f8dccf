# SPDX-License-Identifier: LGPL-2.1-or-later
# fish completion for hugeld(1): commands, options and the kinds of their values are read from --help.

function __hugeld_options
    set -l before (string replace -r '[^,]*$' '' -- (commandline -ct))
    for value in (string split ' ' '@option-values@')
        echo $before$value
    end
end

function __hugeld_commands
    hugeld --help | string replace -rf '^  ([a-z-]+) .*  (\S.*)$' '$1\t$2'
    echo help\t'print help'
end

# Completes the word at the cursor, behind a command.
function __hugeld_words
    set -l words (commandline -opc)
    set -l help (hugeld $words[2] --help 2>/dev/null)
    set -l value
    if string match -q -- '-*' $words[-1]
        set value (string replace -rf -- "^ *(?:-., )? *(?:$words[-1]|$words[-1], --[a-z-]*)=(\S+).*" '$1' $help)
    end
    if test -z "$value"
        string replace -rf '^ +(?:-., )? *(--[a-z-]+)(?:=\S+)? *(.*)' '$1\t$2' -- $help
        set value (string replace -rf '^Usage:.*\[OPTION\.\.\.\] *(.*)' '$1' -- $help)
    end
    switch "$value"
        case 'NAME=*'
            __hugeld_options
        case PATTERNS
            echo main
        case '*PROGRAM*'
            __fish_complete_subcommand --fcs-skip=2
        case '*|*'
            string split '|' -- $value
        case 'PID*'
            __fish_complete_pids
        case 'FILE*' PATH FOLDER
            __fish_complete_path (commandline -ct)
    end
end

complete -c hugeld -f
complete -c hugeld -n 'test (count (commandline -opc)) -eq 1' -a '(__hugeld_commands)'
complete -c hugeld -n 'test (count (commandline -opc)) -eq 1' -l version -d 'Version, and the loaders found'
complete -c hugeld -n 'test (count (commandline -opc)) -eq 1' -s h -l help -d 'Print help'
complete -c hugeld -n '__fish_seen_subcommand_from help' -a '(__hugeld_commands)'
complete -c hugeld -n 'test (count (commandline -opc)) -gt 1; and not __fish_seen_subcommand_from help' -a '(__hugeld_words)'
