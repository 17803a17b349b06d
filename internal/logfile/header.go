package logfile

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// bootStep is by how much the numbers of files increase when the machine was restarted. Files that were begun shortly
// before a crash may be gone after it, and their numbers must not be reused: a reader may know them. The first file
// after a restart is written through to the disk, so the numbers of two restarts differ.
const bootStep = 1000

// header is the first line of a file. Files of releases before positions have none; for them the header is zero. The
// line is not a record, so readers of those releases skip it.
type header struct {
	log   uint32 // the same in all files of a log; different if the folder was removed and created again
	epoch uint32 // of this file
	prev  uint64 // the number of the file before this one
	boot  string // the machine's boot in which the file was begun
}

const (
	headerWord   = "cloudless-log"
	bootLen      = len("01234567-89ab-cdef-0123-456789abcdef")
	fileHeadSize = len(headerWord) + len(" 01234567 01234567 0123456789abcdef ") + bootLen + len("\n")
)

func (h header) line() []byte {
	return fmt.Appendf(nil, "%s %08x %08x %016x %-*.*s\n", headerWord, h.log, h.epoch, h.prev, bootLen, bootLen, h.boot)
}

// parseHeader reads a header without its newline.
func parseHeader(line []byte) (header, bool) {
	if len(line) != fileHeadSize-1 {
		return header{}, false
	}
	fields := strings.SplitN(string(line), " ", 5)
	if len(fields) != 5 || fields[0] != headerWord {
		return header{}, false
	}
	log, logErr := parseID(fields[1])
	epoch, epochErr := parseID(fields[2])
	prev, prevErr := strconv.ParseUint(fields[3], 16, 64)
	if logErr != nil || epochErr != nil || prevErr != nil {
		return header{}, false
	}
	h := header{log: log, epoch: epoch, prev: prev, boot: strings.TrimRight(fields[4], " ")}
	return h, string(h.line()) == string(line)+"\n"
}

// parseID reads the eight hexadecimal digits of an id.
func parseID(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || fmt.Sprintf("%08x", n) != text {
		return 0, fmt.Errorf("%q is not eight hexadecimal digits", text)
	}
	return uint32(n), nil
}

// readHeader returns the header of a file and its length, both zero if there is none.
func readHeader(f *os.File) (h header, size int64) {
	var b [fileHeadSize]byte
	if n, _ := f.ReadAt(b[:], 0); n != len(b) || b[n-1] != '\n' {
		return header{}, 0
	}
	h, ok := parseHeader(b[:len(b)-1])
	if !ok {
		return header{}, 0
	}
	return h, int64(len(b))
}

// headerOf is the header of the file with that number, zero if the file has none or is missing.
func headerOf(dir string, seq uint64) header {
	f, err := os.Open(filePath(dir, seq))
	if err != nil {
		return header{}
	}
	defer f.Close()
	h, _ := readHeader(f)
	return h
}

// newID is never zero, which means a file without a header.
func newID() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(1, binary.BigEndian.Uint32(b[:]))
}

// currentBoot identifies the machine's current boot; empty if unknown.
func currentBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
