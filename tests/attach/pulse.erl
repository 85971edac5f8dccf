%% SPDX-License-Identifier: LGPL-2.1-or-later
%% The same as pulse.go, for the machine of Erlang: processes that compute, timers, and what comes in.
-module(pulse).
-export([main/0]).

work(Wrong) ->
    receive stop -> exit(Wrong) after 0 -> ok end,
    timer:sleep(1),
    Sum = lists:sum([I * I || I <- lists:seq(0, 999)]),
    Same = binary_to_term(term_to_binary({Sum, "text", #{key => 2.5}})) =:= {332833500, "text", #{key => 2.5}},
    Crc = erlang:crc32(binary:copy(<<"abc">>, 100)) =:= erlang:crc32([<<"abc">> || _ <- lists:seq(1, 100)]),
    work(Wrong + if Same andalso Crc -> 0; true -> 1 end).

main() ->
    process_flag(trap_exit, true),
    Workers = [spawn_link(fun() -> work(0) end) || _ <- lists:seq(1, 8)],
    io:format("ready~n"),
    eof = io:get_line(""),
    [Worker ! stop || Worker <- Workers],
    Wrong = lists:sum([receive {'EXIT', Worker, N} -> N end || Worker <- Workers]),
    io:format("rounds, wrong ~b~n", [Wrong]),
    halt(7).
