# SPDX-License-Identifier: LGPL-2.1-or-later
# bash completion for hugeld(1): commands, options and the kinds of their values are read from --help.

# The last of the options in $cur, separated by commas; readline replaces only what follows the last "=".
_hugeld_options() {
    local before='' last=${cur##*,}
    [[ $cur != *,* ]] || before=${cur%,*},
    # shellcheck disable=SC2207 # one word each
    COMPREPLY=($(compgen -W "@option-values@" -- "$last"))
    COMPREPLY=("${COMPREPLY[@]/#/$before}")
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%=*}="}")
    fi
}

# The name of the value that option $1 takes in $help, or nothing.
_hugeld_value() {
    sed -nE "s/^ *(-., )? *$1=([^ ]*).*/\2/p; s/^ *$1, --[a-z-]*=([^ ]*).*/\1/p" <<< "$help"
}

_hugeld() {
    local cur prev words cword i help
    _init_completion -n =: || return
    if ((cword == 1)) || [[ ${words[1]} == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${words[0]}" --help | sed -n 's/^  \([a-z-]*\) .*/\1/p') help --help --version" -- "$cur")
        return
    fi
    help=$("${words[0]}" "${words[1]}" --help 2> /dev/null) || return
    # What stands behind PROGRAM is the program's.
    for ((i = 2; i < cword; i++)); do
        [[ ${words[1]} == @(run|bench) ]] || break
        case ${words[i]} in
        --) _command_offset $((i + 1)) && return ;;
        -*) [[ -z $(_hugeld_value "${words[i]}") ]] || ((i++)) ;;
        *) _command_offset "$i" && return ;;
        esac
    done
    local value=''
    [[ $prev != -* ]] || value=$(_hugeld_value "$prev")
    [[ -n $value || $cur == -* ]] || value=$(sed -n 's/^Usage:.*\[OPTION\.\.\.\] //p' <<< "$help")
    case $value in
    NAME=*) _hugeld_options ;;
    PATTERNS) mapfile -t COMPREPLY < <(compgen -W 'main' -- "$cur") ;;
    *PROGRAM*) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
    *\|*) mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$cur") ;;
    PID*) _pids ;;
    FILE* | PATH) _filedir ;;
    FOLDER) _filedir -d ;;
    '') mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '^ +(-., )? *--[a-z-]+' <<< "$help" | grep -oE -e '--[a-z-]+')" -- "$cur") ;;
    esac
} && complete -F _hugeld hugeld
