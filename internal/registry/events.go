package registry

import (
	"reflect"
	"unsafe"

	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/docker/go-events"
)

// closeEvents ends the goroutine that distributes notifications. The library starts it even
// without receivers, keeps it in a private field and forgets it at shutdown, so it has to
// be taken from there. If a later version renames the field, the goroutine stays and a test
// fails.
func closeEvents(app *handlers.App) {
	sink := reflect.ValueOf(app).Elem().FieldByName("events")
	if sink.Kind() != reflect.Struct {
		return
	}
	if sink = sink.FieldByName("sink"); !sink.IsValid() {
		return
	}
	readable := reflect.NewAt(sink.Type(), unsafe.Pointer(sink.UnsafeAddr())).Elem()
	if broadcaster, ok := reflect.TypeAssert[events.Sink](readable); ok {
		_ = broadcaster.Close() // waits for the goroutine; returns no error
	}
}
