package registry

import (
	"encoding/json"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"
)

// reserve is what pushes leave free on the disk, because the state of the
// cluster needs the same disk more than images do.
const reserve = 128 << 20

// withRoom refuses what would fill the disk of the folder, before anything of it
// is written. What is read or deleted always gets through.
func withRoom(dir string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.Method {
		case http.MethodPost, http.MethodPatch, http.MethodPut:
			if free, ok := roomFor(dir, req.ContentLength); !ok {
				refuseFull(w, free)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

// roomFor reports whether so many bytes fit, -1 if it is not known how many. A
// disk that cannot be asked is left to refuse by itself.
func roomFor(dir string, size int64) (free uint64, ok bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, true
	}
	free = s.Bavail * uint64(s.Bsize)
	return free, free >= reserve+uint64(max(size, 0))
}

// refuseFull has a status that clients do not take as leave to try again at once.
func refuseFull(w http.ResponseWriter, free uint64) {
	refuse(w, http.StatusInsufficientStorage, "DENIED",
		fmt.Sprintf("there is no space left on the disk of the registry: %d MiB are free and %d MiB are kept in reserve; make room on the server and push again",
			free>>20, reserve>>20))
}

// refuse answers as the distribution API wants errors.
func refuse(w http.ResponseWriter, status int, code, why string) {
	type problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]problem{"errors": {{Code: code, Message: why}}})
}
