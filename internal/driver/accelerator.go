package driver

// Accelerator is how something fares that makes faster what a driver carries out.
type Accelerator struct {
	Name string `json:"name"`          // as --accelerate has it
	Off  string `json:"off,omitempty"` // why it is off; the driver carries out all of it then
	Note string `json:"note,omitempty"`
}
