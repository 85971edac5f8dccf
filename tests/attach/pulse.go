// SPDX-License-Identifier: LGPL-2.1-or-later

// pulse: a static program of Go.  Goroutines compute all the time and answer each other, one collects, and standard
// input ends it.  It prints "ready", and at last "rounds, wrong 0".
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/format"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var wrong, rounds, stop int64

const source = "package  p\nfunc f( x int)int{return x+1 }\n"
const formatted = "package p\n\nfunc f(x int) int { return x + 1 }\n"

func compute(group *sync.WaitGroup) {
	defer group.Done()
	for atomic.LoadInt64(&stop) == 0 {
		text, err := format.Source([]byte(source))
		sum := sha256.Sum256(text)
		data, _ := json.Marshal(map[string]any{"a": sum[:4], "b": 1.5})
		if err != nil || string(text) != formatted || len(data) < 10 {
			atomic.AddInt64(&wrong, 1)
		}
		atomic.AddInt64(&rounds, 1)
	}
}

func serve(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			line, _ := bufio.NewReader(connection).ReadString('\n')
			fmt.Fprint(connection, line)
			connection.Close()
		}()
	}
}

func ask(address string, group *sync.WaitGroup) {
	defer group.Done()
	for atomic.LoadInt64(&stop) == 0 {
		connection, err := net.Dial("unix", address)
		if err != nil {
			atomic.AddInt64(&wrong, 1)
			continue
		}
		fmt.Fprintln(connection, "hello")
		line, _ := bufio.NewReader(connection).ReadString('\n')
		if line != "hello\n" {
			atomic.AddInt64(&wrong, 1)
		}
		connection.Close()
		time.Sleep(time.Millisecond)
	}
}

func main() {
	var group sync.WaitGroup
	address := fmt.Sprintf("@hugeld-pulse-%d", os.Getpid())
	listener, err := net.Listen("unix", address)
	if err != nil {
		panic(err)
	}
	go serve(listener)
	group.Add(3)
	go compute(&group)
	go compute(&group)
	go ask(address, &group)
	go func() {
		for {
			runtime.GC()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
	atomic.StoreInt64(&stop, 1)
	group.Wait()
	fmt.Printf("rounds, wrong %d\n", wrong)
	if rounds == 0 {
		os.Exit(1)
	}
	os.Exit(7)
}
