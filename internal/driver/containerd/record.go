package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
)

// record is what containerd does not store about a started task. It is in the run folder,
// so that a reboot removes it together with the task.
type record struct {
	StartedAt time.Time    `json:"startedAt"`
	Killed    bool         `json:"killed,omitempty"` // we sent SIGKILL
	Exit      *driver.Exit `json:"exit,omitempty"`   // once it was seen
}

type records struct {
	dir string
	mu  sync.Mutex // held while a record is changed
}

func newRecords(dir string) *records { return &records{dir: dir} }

func (r *records) path(id string) string { return filepath.Join(r.dir, id+".json") }

// read returns os.ErrNotExist if the task was never started in this boot.
func (r *records) read(id string) (*record, error) {
	data, err := os.ReadFile(r.path(id))
	if err != nil {
		return nil, fmt.Errorf("read the record of task %s: %w", id, err)
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, fmt.Errorf("read the record of task %s: %w", id, err)
	}
	return &rec, nil
}

// write replaces the record atomically. It is not synced: it need not survive a reboot.
func (r *records) write(id string, rec record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("write the record of task %s: %w", id, err)
	}
	temp, err := os.CreateTemp(r.dir, "."+id+"-*")
	if err != nil {
		return fmt.Errorf("write the record of task %s: %w", id, err)
	}
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), r.path(id))
	}
	if err != nil {
		os.Remove(temp.Name())
		return fmt.Errorf("write the record of task %s: %w", id, err)
	}
	return nil
}

// change applies edit to the record if there is one.
func (r *records) change(id string, edit func(*record)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.read(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	edit(rec)
	return r.write(id, *rec)
}

func (r *records) remove(id string) error {
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record of task %s: %w", id, err)
	}
	return nil
}

func readBootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
