// Package report renders a study's record: Text for a terminal, HTML as one self-contained page. Both are pure
// functions of the record: they measure nothing, fetch nothing and judge nothing that the record has not judged.
//
// Start at Text and HTML; cell.go reduces a record's bursts to what both show.
package report

import "larder/internal/record"

// armOrder is the order of the arms everywhere.
var armOrder = []string{record.Recompute, record.HostArm, record.HBMArm}

// armName is an arm in words, as a table shows it.
func armName(arm string) string {
	switch arm {
	case record.Recompute:
		return "Recompute"
	case record.HostArm:
		return "Host memory"
	case record.HBMArm:
		return "HBM"
	}
	return arm
}

// armDoing is an arm as the subject of a sentence.
func armDoing(arm string) string {
	switch arm {
	case record.Recompute:
		return "Recomputing"
	case record.HostArm:
		return "Loading from host memory"
	case record.HBMArm:
		return "Keeping KV in HBM"
	}
	return arm
}
