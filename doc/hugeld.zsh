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
    loader=('--copy[make private copies of objects that are not shared]' '(-l --via)'{-l,--via}'[which way in]:way:(auto preload ldso)'
        '(-L --ld-so)'{-L,--ld-so}'[the patched dynamic linker]:file:_files')
    help=('(- *)'{-h,--help}'[print help]')
    if ((CURRENT == 2)); then
        _values command 'run[run a program on huge pages]' 'inspect[print the plan]' \
            'status[show which parts are on huge pages now]' 'doctor[test this machine]' \
            'perf-map[name moved functions for perf]' 'bench[is it worth it]' \
            'survey[find running programs that could gain]' 'image[lay a file out for huge pages]' 'share[one copy of the text for all processes]' \
            'attach[move the text of running processes]' 'detach[move it back]' 'service[keep the images up to date]' \
            'enable[share a program from now on]' 'disable[stop sharing it]' 'reset[give back everything]'
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
            '--against=[compare with these options]:option:_hugeld_options' \
            '--at-once[both sides at the same time]' '--precision=[how narrow an interval]:per cent:' \
            '(-n --pairs)'{-n,--pairs}'[runs of each side]:number:' '--pid=[measure a process]:process:_pids' \
            '--report=[write a report]:file:_files' '--seconds=[how long]:number:' '--toggle[attach and detach in turns]' \
            '--metric=[prints the work done]:command:' '--keep[leave it attached]' '--running-threads[interrupt threads that run, too]' '(-)1:program:_command_names -e' \
            '*::argument:_normal'
        ;;
    survey)
        _arguments -S $help $json '--all-users[of other users too]' '*--program=[only this executable]:file:_files' \
            '--pid=[only this process]:process:_pids' '--exact[count pages]' '--report=[write a report]:file:_files' '--seconds=[how long]:number:' '--calibrate[measure the cost of jumps]' \
            '(-)1:program:_command_names -e' '*::argument:_normal'
        ;;
    inspect) _arguments -S $help $json $options '(-P --pid)'{-P,--pid}'[a process]:process:_pids' '*:file:_files' ;;
    status) _arguments -S $help $json '(-a --all)'{-a,--all}'[every process]' '*:process:_pids' ;;
    doctor)
        _arguments -S $help $json $options $objects '--copy[count a private copy]' '--own-pages[huge pages of its own]:number:' \
            '(-)1:program:_command_names -e' '*::argument:_normal'
        ;;
    share)
        _arguments -S $help $json '--store=[another store]:folder:_files -/' '--way=[in place or an image]:way:(place image)' \
            '--any-disk[files on disks that may be exchanged, too]' \
            '--size=[how much it may hold]:size:' '--per-node[an image on each node]' '--running[files that processes have mapped]' \
            '(-a --all)'{-a,--all}'[remove everything]' '--unused[remove images that no process maps]' '--force[remove mapped images, too]' \
            '--config=[another configuration]:file:_files' '--unattended[as the service does it]' \
            '1:action:(add list check remove refresh unit)' '*:file:_files'
        ;;
    service) _arguments -S $help $json '1:action:(status undo)' '--seconds=[undo waits so long]:seconds:' '--config=[another configuration]:file:_files' '--dry-run[only show what would be made]' '--once[put everything enabled on huge pages, and end]' '--keep-only[only hold and watch]' \
            '--report=[write a report]:file:_files' ;;
    enable | disable) _arguments -S $help '*:program:_command_names -e' ;;
    reset) _arguments -S $help ;;
    attach | detach)
        local -a store
        [[ $command == detach ]] || store=('--store=[another store]:folder:_files -/')
        _arguments -S $help $json $objects $store '(-c --children)'{-c,--children}'[children too]' \
            '--dry-run[only show what would be done]' '--running-threads[interrupt threads that run, too]' '*:process:_pids'
        ;;
    image) _arguments -S $help '(-H --huge-page)'{-H,--huge-page}'[size of huge pages]:bytes:(2M 32M 512M)' '1:file:_files' '2:out:_files' ;;
    perf-map)
        _arguments -S $help '(-a --append)'{-a,--append}'[add to the map]' '(-c --children)'{-c,--children}'[children too]' \
            '(-C --clean)'{-C,--clean}'[remove old maps]' '(-f --force)'{-f,--force}'[replace any map]' '(-m --no-demangle)'{-m,--no-demangle}'[names as they are]' \
            '(-O --output)'{-O,--output}'[write to]:file:_files' '*:process:_pids'
        ;;
    esac
}

_hugeld "$@"
