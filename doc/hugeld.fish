# SPDX-License-Identifier: LGPL-2.1-or-later
# fish completion for hugeld(1)

function __hugeld_options
    set -l before (string replace -r '[^,]*$' '' -- (commandline -ct))
    for value in (string split ' ' '@option-values@')
        echo $before$value
    end
end

set -l commands run inspect status doctor perf-map bench survey image attach detach enable disable apply list reset
complete -c hugeld -f
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a run -d 'Run a program on huge pages'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a inspect -d 'Print the plan'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a status -d 'What is on huge pages now'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a doctor -d 'What this machine can do'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a perf-map -d 'Name moved functions for perf'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a bench -d 'Is it worth it'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a survey -d 'Which programs would gain'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a image -d 'Lay a file out for huge pages'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a attach -d 'Move the text of running processes'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a detach -d 'Move it back'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a enable -d 'Keep its text on huge pages'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a disable -d 'Stop keeping it'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a apply -d 'Do what the lists say'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a list -d 'What is enabled, and who has it'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a reset -d 'Give back everything that hugeld holds'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -a help -d 'Print help'
complete -c hugeld -n "not __fish_seen_subcommand_from $commands" -l version -d 'Version, and the loaders found'
complete -c hugeld -s h -l help -d 'Print help'

complete -c hugeld -n '__fish_seen_subcommand_from inspect status doctor bench survey attach detach enable disable apply list reset' -s j -l json -d 'Print JSON'
complete -c hugeld -n '__fish_seen_subcommand_from run inspect bench' -s o -l options -x -a '(__hugeld_options)' -d How
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -s p -l objects -x -a main -d 'Which objects'
complete -c hugeld -n '__fish_seen_subcommand_from enable disable' -a '(__fish_complete_command)'
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -x -a '(__fish_complete_subcommand)'
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -s l -l via -x -a 'auto preload ldso' -d 'Which way in'
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -s L -l ld-so -r -F -d 'The patched dynamic linker'
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -l children -d 'Put what it starts on images'
complete -c hugeld -n '__fish_seen_subcommand_from run bench' -l copy -d 'Make private copies of objects that are not shared'
complete -c hugeld -n '__fish_seen_subcommand_from inspect' -s P -l pid -x -a '(__fish_complete_pids)' -d 'A process'
complete -c hugeld -n '__fish_seen_subcommand_from inspect image' -F
complete -c hugeld -n '__fish_seen_subcommand_from attach detach' -s c -l children -d 'Children too'
complete -c hugeld -n '__fish_seen_subcommand_from attach' -l memory -x -d 'The most memory for copies, in MiB'
complete -c hugeld -n '__fish_seen_subcommand_from attach detach' -l dry-run -d 'Only show what would be done'
complete -c hugeld -n '__fish_seen_subcommand_from apply list' -l store -r -F -d 'Another store'
complete -c hugeld -n '__fish_seen_subcommand_from image' -s H -l huge-page -x -a '2M 32M 512M' -d 'Size of huge pages'
complete -c hugeld -n '__fish_seen_subcommand_from status perf-map attach detach' -a '(__fish_complete_pids)'
complete -c hugeld -n '__fish_seen_subcommand_from status' -s a -l all -d 'Every process with huge pages'
complete -c hugeld -n '__fish_seen_subcommand_from perf-map' -s a -l append -d 'Add to the map'
complete -c hugeld -n '__fish_seen_subcommand_from perf-map' -s c -l children -d 'Children too'
complete -c hugeld -n '__fish_seen_subcommand_from perf-map' -s d -l demangle -d 'Names by c++filt'
complete -c hugeld -n '__fish_seen_subcommand_from perf-map' -s O -l output -r -F -d 'Write to'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -s i -l ignore-failure -d 'Any exit status'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -s n -l pairs -x -d 'Runs of each side'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -l pid -x -a '(__fish_complete_pids)' -d 'Measure a process'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -l at-once -d 'Both sides at the same time'
complete -c hugeld -n '__fish_seen_subcommand_from bench survey' -l report -r -F -d 'Write a report'
complete -c hugeld -n '__fish_seen_subcommand_from bench survey' -l seconds -x -d 'How long'
complete -c hugeld -n '__fish_seen_subcommand_from survey' -l all-users -d 'Of other users too'
complete -c hugeld -n '__fish_seen_subcommand_from survey' -l program -r -F -d 'Only this executable'
complete -c hugeld -n '__fish_seen_subcommand_from survey' -l pid -x -a '(__fish_complete_pids)' -d 'Only this process'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -l toggle -d 'Attach and detach in turns'
complete -c hugeld -n '__fish_seen_subcommand_from bench' -l metric -x -d 'Prints the work done'
complete -c hugeld -n '__fish_seen_subcommand_from enable' -l way -x -a 'in-place image' -d 'Whatever is preferred'
complete -c hugeld -n '__fish_seen_subcommand_from apply' -s n -l dry-run -d 'Change nothing'
complete -c hugeld -n '__fish_seen_subcommand_from apply' -l metrics -r -F -d 'Write gauges'
complete -c hugeld -n '__fish_seen_subcommand_from apply' -l every -x -d 'Again after that time'
complete -c hugeld -n '__fish_seen_subcommand_from apply list' -l list -r -F -d 'This list'
complete -c hugeld -n '__fish_seen_subcommand_from apply' -l any-disk -d 'Files on other mounts, too'
complete -c hugeld -n '__fish_seen_subcommand_from apply' -l boot -d 'Put unmapped files in place on a busy machine, too'
complete -c hugeld -n '__fish_seen_subcommand_from list' -s c -l check -d 'Compare the bytes'
complete -c hugeld -n '__fish_seen_subcommand_from reset' -l detach -d 'Move processes back, too'
