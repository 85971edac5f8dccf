// SPDX-License-Identifier: LGPL-2.1-or-later

// goroutines ROUNDS DSO DSO: two goroutines open, call and close a DSO each (table.S) by cgo, while others build trees,
// check and drop them, one collects, the profiler's SIGPROF comes a thousand times a second, and SIGURG, by which
// goroutines are preempted, as often as it goes.  Go's handlers run on sigaltstack(2) and look at where the thread was.
// Prints "opened N N, wrong N".
package main

/*
#cgo LDFLAGS: -ldl -lpthread
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t open_and_close(const char *path) {
    void *handle = dlopen(path, RTLD_NOW);
    if (handle == NULL)
        return 0;
    uint64_t (**table)(uint64_t, void *) = dlsym(handle, "table"), x = 1;
    for (unsigned i = 0; i < 4096; i += 16)
        x = table[i](x, NULL);
    return dlclose(handle) == 0 ? x : 0;
}

static void *storm(void *unused) {
    for (;;) {
        kill(getpid(), SIGURG);
        usleep(50);
    }
    return unused;
}

static void start_storm(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, storm, NULL);
}
*/
import "C"

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"
)

type tree struct {
	left, right *tree
	number      int
}

var wrong, stop int64

func build(depth, number int) *tree {
	if depth == 0 {
		return nil
	}
	return &tree{build(depth-1, 2*number), build(depth-1, 2*number+1), number}
}

func (t *tree) check(number int) bool {
	return t == nil || t.number == number && t.left.check(2*number) && t.right.check(2*number+1)
}

func grow(seed int) {
	kept := build(10, seed)
	for round := seed; atomic.LoadInt64(&stop) == 0; round++ {
		if !build(8, round).check(round) || !kept.check(seed) {
			atomic.AddInt64(&wrong, 1)
		}
	}
}

func openAndClose(path string, rounds int) int {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	opened, first := 0, C.open_and_close(name)
	for i := 0; i < rounds; i++ {
		if C.open_and_close(name) != first || first == 0 {
			atomic.AddInt64(&wrong, 1)
		}
		opened++
	}
	return opened
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	runtime.SetCPUProfileRate(1000)
	C.start_storm()
	for seed := 1; seed <= 2; seed++ {
		go grow(seed)
	}
	go func() {
		for atomic.LoadInt64(&stop) == 0 {
			runtime.GC()
		}
	}()
	var opened [2]int
	var group sync.WaitGroup
	for i := range opened {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			opened[i] = openAndClose(os.Args[2+i], rounds)
		}(i)
	}
	group.Wait()
	atomic.StoreInt64(&stop, 1)
	os.Stdout.WriteString("opened " + strconv.Itoa(opened[0]) + " " + strconv.Itoa(opened[1]) + ", wrong " +
		strconv.FormatInt(atomic.LoadInt64(&wrong), 10) + "\n")
}
