"""Use of trained models: predict, evaluate, export, embed, retrofit, adapt, extend, verify.

Words of this room: a `ServedModel` is network and head; its `about`, a `ModelDescription`, is all
else that a file stores with the weights, and its `dial` says that alpha can still be changed. A
`Predictor` is a served model on a device, ready for images. `trust` is the calibration with the
thresholds that answer sets need. `Picture` is an image as users pass it.
"""
