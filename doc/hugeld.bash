# SPDX-License-Identifier: LGPL-2.1-or-later
# bash completion for hugeld(1)

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

_hugeld() {
    local cur prev words cword i options
    _init_completion -n =: || return
    if ((cword == 1)) || [[ ${words[1]} == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "run inspect status doctor perf-map bench survey image attach detach enable disable apply list reset help --help --version" -- "$cur")
        return
    fi
    case ${words[1]} in
    run) options='--via --ld-so --options --objects --children --copy --help' ;;
    inspect) options='--json --options --pid --help' ;;
    status) options='--json --all --help' ;;
    doctor) options='--json --help' ;;
    perf-map) options='--append --children --demangle --output --help' ;;
    bench)
        options='--at-once --children --copy --ignore-failure --json --via --ld-so --metric --pairs --options --pid --objects --report --seconds --toggle --help'
        ;;
    survey) options='--all-users --json --pid --program --report --seconds --help' ;;
    image) options='--huge-page --help' ;;
    enable) options='--json --way --help' ;;
    disable) options='--json --help' ;;
    apply) options='--any-disk --boot --dry-run --every --json --list --metrics --store --help' ;;
    list) options='--check --json --list --store --help' ;;
    reset) options='--detach --json --help' ;;
    attach) options='--json --children --dry-run --memory --help' ;;
    detach) options='--json --children --dry-run --help' ;;
    *) return ;;
    esac
    # What stands behind PROGRAM is the program's.
    if [[ ${words[1]} == @(run|bench) ]]; then
        for ((i = 2; i < cword; i++)); do
            case ${words[i]} in
            --) _command_offset $((i + 1)) && return ;;
            -[oplLn] | --options | --objects | --via | --ld-so | --metric | --pairs | --pid | --program | --report | --seconds) i=$((i + 1)) ;;
            -*) ;;
            *) _command_offset "$i" && return ;;
            esac
        done
    fi
    case $prev in
    -o | --options) _hugeld_options ;;
    -l | --via) mapfile -t COMPREPLY < <(compgen -W 'auto preload ldso' -- "$cur") ;;
    -p | --objects) mapfile -t COMPREPLY < <(compgen -W 'main' -- "$cur") ;;
    -P | --pid) _pids ;;
    -L | -O | --list | --metrics | --ld-so | --output | --program | --report) _filedir ;;
    --way) mapfile -t COMPREPLY < <(compgen -W 'in-place image' -- "$cur") ;;
    --store) _filedir -d ;;
    -n | --metric | --pairs | --seconds | -H | --huge-page | --every) ;;
    *)
        case ${words[1]}:$cur in
        *:-*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur") ;;
        inspect:* | image:*) _filedir ;;
        status:* | perf-map:* | attach:* | detach:*) _pids ;;
        enable:* | disable:* | run:* | bench:*) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
        esac
        ;;
    esac
} && complete -F _hugeld hugeld
