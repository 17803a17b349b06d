package chaos

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// All machines of the test share the kernel's clock with the machine that runs it. A process reads the time through
// code that the kernel maps into it (vdso). The test rewrites that code, in the memory of one process only:
// CLOCK_REALTIME is shifted as if the clock had been set, and the monotonic clocks go on as on a real machine. The
// tested program does not know.

// canSetClocks is whether the code below is for this machine.
const canSetClocks = runtime.GOARCH == "amd64"

// shiftedClock is clock_gettime(clock, time) as machine code: it asks the kernel and adds seconds to the answer.
//
//	mov eax, 228; syscall       the system call of the same name
//	test edi, edi; jne end      another clock than CLOCK_REALTIME
//	mov rcx, SECONDS; add [rsi], rcx
//	end: ret
var shiftedClock = [...]byte{
	0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0d,
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
}

// secondsAt is the offset of the seconds in shiftedClock.
const secondsAt = 13

// setClock makes the clock of a process differ from the kernel's.
func setClock(pid int, by time.Duration) error {
	v, err := openVdso(pid)
	if err != nil {
		return fmt.Errorf("set the clock of process %d: %w", pid, err)
	}
	defer v.memory.Close()
	if err := v.shift(int64(by / time.Second)); err != nil {
		return fmt.Errorf("set the clock of process %d: %w", pid, err)
	}
	return nil
}

// setClocks shifts the clocks of all shims of a machine, and of its agent or server, and returns how many that were.
func (m *machine) setClocks(shims, process time.Duration) (count int, err error) {
	if !canSetClocks {
		return 0, nil
	}
	set := func(pid int, by time.Duration) {
		if setClock(pid, by) == nil { // one that has ended needs none
			count++
		}
	}
	pids, err := m.shims()
	for _, pid := range pids {
		set(pid, shims)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		set(m.process.Pid, process)
	}
	return count, err
}

// vdso is the kernel's code in a process.
type vdso struct {
	memory *os.File
	start  int64
	code   []byte
	entry  uint64 // of clock_gettime
}

func openVdso(pid int) (*vdso, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var start, end int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
				return nil, err
			}
		}
	}
	if start == 0 {
		return nil, errors.New("the kernel maps no code into it")
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	v := &vdso{memory: memory, start: start, code: make([]byte, end-start)}
	if _, err = memory.ReadAt(v.code, start); err == nil {
		v.entry, err = clockEntry(v.code)
	}
	if err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	return v, nil
}

func clockEntry(code []byte) (uint64, error) {
	image, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return 0, err
	}
	symbols, err := image.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			return s.Value, nil
		}
	}
	return 0, errors.New("the kernel's code has no clock")
}

// shift writes our clock into unused space of the kernel's code, and then redirects calls there with one write: the
// process runs on meanwhile.
func (v *vdso) shift(seconds int64) error {
	place := len(v.code) - 32
	place += (8 - (place+secondsAt)%8) % 8 // the seconds are changed by one write, too
	ours := binary.LittleEndian.AppendUint64(nil, uint64(seconds))
	if bytes.HasPrefix(v.code[place:], shiftedClock[:secondsAt]) {
		_, err := v.memory.WriteAt(ours, v.start+int64(place+secondsAt))
		return err
	}
	if len(bytes.Trim(v.code[place:], "\x00")) > 0 {
		return errors.New("the kernel's code has no room for a clock")
	}
	clock := shiftedClock
	copy(clock[secondsAt:], ours)
	if _, err := v.memory.WriteAt(clock[:], v.start+int64(place)); err != nil {
		return err
	}
	jump := bytes.Clone(v.code[v.entry : v.entry+8])
	jump[0] = 0xe9 // jmp, relative to the end of its five bytes
	binary.LittleEndian.PutUint32(jump[1:], uint32(place-int(v.entry)-5))
	_, err := v.memory.WriteAt(jump, v.start+int64(v.entry))
	return err
}
