#compdef hugeld
# SPDX-License-Identifier: LGPL-2.1-or-later

_hugeld_options() {
    local -a values
    values=(@option-values@)
    compset -P '*,'
    compadd -S '' -- $values
}

_hugeld() {
    local -a json options objects loader help
    json=('(-j --json)'{-j,--json}'[print JSON]')
    options=('*'{-o,--options}'[how]:option:_hugeld_options')
    objects=('(-p --objects)'{-p,--objects}'[which objects]:patterns:(main)')
    loader=('--children[put what it starts on images]' '--copy[make private copies of objects that are not shared]' '(-l --via)'{-l,--via}'[which way in]:way:(auto preload ldso)'
        '(-L --ld-so)'{-L,--ld-so}'[the patched dynamic linker]:file:_files')
    help=('(- *)'{-h,--help}'[print help]')
    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then
        _values command 'run[run a program on huge pages]' 'inspect[print the plan]' \
            'status[show which parts are on huge pages now]' 'doctor[test this machine]' \
            'perf-map[name moved functions for perf]' 'bench[is it worth it]' \
            'survey[find running programs that could gain]' 'image[lay a file out for huge pages]' \
            'attach[move the text of running processes]' 'detach[move it back]' \
            'enable[keep its text on huge pages]' 'disable[stop keeping it]' 'apply[do what the lists say]' \
            'list[what is enabled, and who has it]' 'reset[give back everything]' 'help[print help]'
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
    run)
        _arguments -S $help $options $objects $loader \
            '(-)1:program:_command_names -e' '*::argument:_normal'
        ;;
    bench)
        _arguments -S $help $json $options $objects $loader '(-i --ignore-failure)'{-i,--ignore-failure}'[any exit status]' \
            '--at-once[both sides at the same time]' \
            '(-n --pairs)'{-n,--pairs}'[runs of each side]:number:' '--pid=[measure a process]:process:_pids' \
            '--report=[write a report]:file:_files' '--seconds=[how long]:number:' '--toggle[attach and detach in turns]' \
            '--metric=[prints the work done]:command:' '(-)1:program:_command_names -e' \
            '*::argument:_normal'
        ;;
    survey)
        _arguments -S $help $json '--all-users[of other users too]' '*--program=[only this executable]:file:_files' \
            '--pid=[only this process]:process:_pids' '--report=[write a report]:file:_files' '--seconds=[how long]:number:'
        ;;
    inspect) _arguments -S $help $json $options '(-P --pid)'{-P,--pid}'[a process]:process:_pids' '*:file:_files' ;;
    status) _arguments -S $help $json '(-a --all)'{-a,--all}'[every process]' '*:process:_pids' ;;
    doctor) _arguments -S $help $json ;;
    enable) _arguments -S $help $json '--way=[whatever is preferred]:way:(in-place image)' '*:program:_command_names -e' ;;
    disable) _arguments -S $help $json '*:program:_command_names -e' ;;
    apply)
        _arguments -S $help $json '(-n --dry-run)'{-n,--dry-run}'[change nothing]' '--metrics=[write gauges]:file:_files' \
            '--every=[again after that time]:time:' '--list=[this list]:file:_files' '--store=[another store]:folder:_files -/' \
            '--any-disk[files on other mounts, too]' '--boot[put unmapped files in place on a busy machine, too]'
        ;;
    list)
        _arguments -S $help $json '(-c --check)'{-c,--check}'[compare the bytes]' '--list=[this list]:file:_files' \
            '--store=[another store]:folder:_files -/'
        ;;
    reset) _arguments -S $help $json '--detach[move processes back, too]' ;;
    attach | detach)
        local -a memory
        [[ $command == detach ]] || memory=('--memory=[the most memory for copies]:MiB:')
        _arguments -S $help $json $memory '(-c --children)'{-c,--children}'[children too]' \
            '--dry-run[only show what would be done]' '*:process:_pids'
        ;;
    image) _arguments -S $help '(-H --huge-page)'{-H,--huge-page}'[size of huge pages]:bytes:(2M 32M 512M)' '1:file:_files' '2:out:_files' ;;
    perf-map)
        _arguments -S $help '(-a --append)'{-a,--append}'[add to the map]' '(-c --children)'{-c,--children}'[children too]' \
            '(-d --demangle)'{-d,--demangle}'[names by c++filt]' '(-O --output)'{-O,--output}'[write to]:file:_files' '*:process:_pids'
        ;;
    esac
}

_hugeld "$@"
