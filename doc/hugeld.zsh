#compdef hugeld
# SPDX-License-Identifier: LGPL-2.1-or-later
# zsh completion for hugeld(1): commands, options and the kinds of their values are read from --help.

_hugeld_options() {
    local -a values
    values=(@option-values@)
    compset -P '*,'
    compadd -S '' -- $values
}

# What completes a value that --help calls $1.
_hugeld_action() {
    case $1 in
    NAME=*) REPLY=_hugeld_options ;;
    PATTERNS) REPLY='(main)' ;;
    *PROGRAM*) REPLY='_command_names -e' ;;
    *\|*) REPLY="(${1//|/ })" ;;
    PID*) REPLY=_pids ;;
    FILE*|PATH) REPLY=_files ;;
    FOLDER) REPLY='_files -/' ;;
    *) REPLY=' ' ;;
    esac
}

_hugeld() {
    local REPLY line
    local -a specs match mbegin mend
    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then
        specs=(${(f)"$(_call_program commands $words[1] --help | sed -n 's/^  \([a-z-]*\) .*  \([^ ].*\)/\1:\2/p')"})
        _describe command specs
        return
    fi
    for line in ${(f)"$(_call_program options $words[1] $words[2] --help)"}; do
        if [[ $line =~ '^ +(-(.), )? *--([a-z-]+)(=([^ ]+))? *(.*)$' ]]; then
            local long="--$match[3]${match[4]:+=}" letter=${match[2]:+-$match[2]${match[4]:++}} value=$match[5]
            local text="[${match[6]//[\[\]]/}]"
            _hugeld_action "$value"
            for name in $long $letter; specs+=("*$name$text${value:+:$value:$REPLY}")
        elif [[ $line =~ '^Usage:.*\[OPTION\.\.\.\] *(.*)$' ]]; then
            _hugeld_action "$match[1]"
            [[ $match[1] != *PROGRAM\ * ]] || specs+=("(-)1:program:$REPLY" '*::argument:_normal')
            [[ -z $match[1] || $match[1] == *PROGRAM\ * ]] || specs+=("*:argument:$REPLY")
        fi
    done
    shift words
    ((CURRENT--))
    _arguments -S $specs
}

_hugeld "$@"
