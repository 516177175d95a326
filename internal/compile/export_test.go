package compile

// SetSlice has each Step change so many elements.
func (c *Compiler) SetSlice(elements int) { c.sliceElements = elements }
