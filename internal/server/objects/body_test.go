package objects

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
)

func TestAStalledUploadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := []time.Duration{50 * time.Second, 50 * time.Second, time.Hour}
		content, end := newBody(t.Context(), time.Minute, func() ([]byte, error) {
			time.Sleep(pauses[0])
			pauses = pauses[1:]
			return []byte("half"), nil
		})
		got, err := io.ReadAll(content)
		coretest.WantCode(t, core.StatusOf(err), codes.DeadlineExceeded, "nothing came for 1m0s", "send it again")
		if string(got) != "halfhalf" {
			t.Errorf("read %q before", got)
		}
		end()
		time.Sleep(time.Hour)
	})
}

func TestAStalledDownloadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		out := newOutlet(t.Context(), time.Minute, func([]byte) error {
			<-ended // as a stream whose caller takes nothing
			return errors.New("the stream has ended")
		})
		_, err := out.Write([]byte("content"))
		coretest.WantCode(t, core.StatusOf(err), codes.DeadlineExceeded, "nothing was taken for 1m0s")
		close(ended)
	})
}
