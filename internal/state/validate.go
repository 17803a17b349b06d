package state

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Validate returns an [*InvalidError] if a transaction is malformed or if this release does not understand all of it. A
// proposer calls it before the transaction enters the log. A transaction in the log that is invalid comes from a newer
// release.
func Validate(tx *statev1.Transaction) error {
	if reason := checkTransaction(tx); reason != "" {
		return &InvalidError{Change: -1, Reason: reason}
	}
	part, last := uint32(0), uint32(0)
	for i, change := range tx.GetChanges() {
		if reason := checkChange(change); reason != "" {
			return &InvalidError{Change: i, Reason: reason}
		}
		if part != change.GetPart() && change.GetPart() != 0 && change.GetPart() <= last {
			return &InvalidError{Change: i, Reason: "is of a part that was over before"}
		}
		part = change.GetPart()
		last = max(last, part)
	}
	return nil
}

const (
	reasonNewer = "holds fields that this release does not know: update this server"
	reasonMark  = "changes a mark, which the tables move themselves"
)

func checkTransaction(tx *statev1.Transaction) string {
	switch {
	case len(tx.GetChanges()) == 0:
		return "has no changes"
	case !tx.GetTime().IsValid():
		return "is not stamped with a time"
	case len(tx.GetOthers()) > 0:
		return "holds other transactions"
	case hasUnknown(tx):
		return reasonNewer
	}
	return ""
}

func checkChange(change *statev1.Change) string {
	if hasUnknown(change) {
		return reasonNewer
	}
	switch action := change.GetAction().(type) {
	case *statev1.Change_Put:
		return checkPut(action.Put)
	case *statev1.Change_Delete:
		if action.Delete.GetKind() == string(KindMark) {
			return reasonMark
		}
		return checkKey(action.Delete)
	case *statev1.Change_Check:
		if change.ExpectVersion == nil {
			return "checks an object without naming a version"
		}
		return checkKey(action.Check)
	}
	return "has no action"
}

func checkPut(wrapped *statev1.Object) string {
	if hasUnknown(wrapped) {
		return reasonNewer
	}
	kind, object := unwrap(wrapped)
	switch kind {
	case "":
		return "puts no object of a known kind"
	case KindMark:
		return reasonMark
	}
	return checkObject(kind, object)
}

// checkObject checks everything that the tables rely on.
func checkObject(kind Kind, object Object) string {
	metadata := object.GetMetadata()
	switch {
	case metadata.GetUid() == "":
		return fmt.Sprintf("puts a %s without uid", kind)
	case metadata.GetName() == "" && tables[ordinals[kind]].named:
		return fmt.Sprintf("puts the %s %s without name", kind, metadata.GetUid())
	case hasZero(metadata.GetUid()) || hasZero(metadata.GetName()) || hasZero(metadata.GetNamespace()):
		return fmt.Sprintf("puts a %s with a zero byte in uid, name or namespace", kind)
	}
	return ""
}

func checkKey(key *statev1.Key) string {
	if hasUnknown(key) {
		return reasonNewer
	}
	if _, known := ordinals[Kind(key.GetKind())]; !known {
		return fmt.Sprintf("names the unknown kind %q", key.GetKind())
	}
	if uid := key.GetUid(); uid == "" || hasZero(uid) {
		return fmt.Sprintf("names a %s without a proper uid", key.GetKind())
	}
	return ""
}

func hasZero(s string) bool { return strings.IndexByte(s, 0) >= 0 }

func hasUnknown(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }
